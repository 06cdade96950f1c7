import type { Socket } from 'node:net';
import { eventually } from '../harness/poll.js';
import { type MonitoredCommand, monitor } from './redis-monitor.js';

/** A member's lease as Redis took it, both ms since 1970. */
export interface LeaseRecord {
  readonly at: number;
  readonly until: number;
}

interface Span {
  readonly from: number;
  to: number;
}

/**
 * What Redis itself did for a group, as its MONITOR shows it: whose lease lasted until when, what was acknowledged and what was
 * taken over, each with Redis's time. It knows nothing of the time at which it was not connected.
 */
export class RedisWatch implements AsyncDisposable {
  /** Member → its leases, in the order of time. */
  readonly leases = new Map<string, LeaseRecord[]>();
  /** Stream → id → when. */
  readonly acknowledged = new Map<string, Map<string, number>>();
  readonly claimed: { readonly at: number; readonly stream: string; readonly id: string; readonly by: string }[] = [];
  readonly blind: Span[] = [];
  #socket: Socket | undefined;
  #isOver = false;
  #watching: Promise<void> = Promise.resolve();

  private constructor(
    private readonly url: string,
    private readonly membersKey: string,
    private readonly group: string,
  ) {}

  static async start(url: string, membersKey: string, group: string): Promise<RedisWatch> {
    const watch = new RedisWatch(url, membersKey, group);
    await watch.#connect();
    return watch;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isOver = true;
    this.#socket?.destroy();
    await this.#watching;
  }

  async #connect(): Promise<void> {
    const port = Number(new URL(this.url).port);
    this.#socket = await monitor(
      port,
      (command) => this.#see(command),
      () => {
        if (!this.#isOver) this.#watching = this.#again({ from: Date.now(), to: Number.POSITIVE_INFINITY });
      },
    );
  }

  async #again(span: Span): Promise<void> {
    this.blind.push(span);
    await eventually(() => (this.#isOver ? true : this.#connect()), { withinMs: 60_000, what: 'MONITOR' });
    span.to = Date.now();
  }

  #see({ at, args }: MonitoredCommand): void {
    const [command, key, ...rest] = args as [string, string, ...string[]];
    switch (command.toUpperCase()) {
      case 'ZADD': {
        if (key !== this.membersKey) return;
        const [until, member] = rest as [string, string];
        const ofMember = this.leases.get(member) ?? [];
        this.leases.set(member, ofMember);
        ofMember.push({ at, until: Number(until) });
        return;
      }
      case 'ZREM': {
        if (key === this.membersKey) this.leases.get(rest[0] as string)?.push({ at, until: 0 });
        return;
      }
      case 'XACK': {
        if (rest[0] !== this.group) return;
        const ids = this.acknowledged.get(key) ?? new Map<string, number>();
        this.acknowledged.set(key, ids);
        for (const id of rest.slice(1)) if (!ids.has(id)) ids.set(id, at);
        return;
      }
      case 'XCLAIM': {
        const [group, by, , id] = rest as [string, string, string, string];
        if (group === this.group) this.claimed.push({ at, stream: key, id, by });
        return;
      }
      default:
        return;
    }
  }
}
