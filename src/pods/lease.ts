import { FatalError } from '../core/errors.js';
import type { Logger } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep, within } from '../core/sleep.js';
import { type Connection, replyCode } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { loadScript } from '../redis/script.js';

const LEASE = loadScript(import.meta.url, 'lease');
const LEAVE = loadScript(import.meta.url, 'leave');
const LIVE = loadScript(import.meta.url, 'live');

export const LEASE_MS = 3000;
const RENEW_MS = 500;
/** An operator's errors. */
const PERMANENT = /^(NOPERM|NOAUTH|WRONGPASS|WRONGTYPE)$/;

export interface LeaseOptions {
  readonly connection: Connection;
  readonly keys: Keys;
  readonly pod: string;
  readonly processId: string;
  /** Processes whose lease has lapsed, at each look; only while this process may judge. */
  readonly onLapsed: (processIds: readonly string[]) => void;
  /** The lease was or may have been gone, and is back: others may have taken this process for dead. */
  readonly onReturn: () => void;
  /** Another process holds this pod's name. */
  readonly onLost: () => void;
  /** At the start, also a Redis that refuses by an operator's error is waited for. */
  readonly isPatient: boolean;
  readonly logger: Logger;
}

/**
 * Says that this process lives: one lease per process, and with it the pod's name. Others are judged by their leases only
 * while this process's own renewals of a whole lease were answered in time: after a stall of Redis all leases are gone, and
 * nobody is dead.
 */
export class Lease extends Service {
  readonly #stopping = new AbortController();
  #running: Promise<void> = Promise.resolve();
  /** Since when every renewal was answered in time, monotonic ms. */
  #soundSince = performance.now();
  #lastAnswerAt = performance.now();
  /** When that renewal was sent: the lease that it brought ends no earlier than one lease later. */
  #lastAskedAt = performance.now();
  /** Redis's own time at that answer. */
  #lastWall: number | undefined;

  constructor(private readonly options: LeaseOptions) {
    super();
  }

  /** This process may take others for dead. */
  get mayJudge(): boolean {
    const now = performance.now();
    return now - this.#lastAnswerAt < LEASE_MS && now - this.#soundSince >= LEASE_MS;
  }

  /** @throws {FatalError} when a living process has this pod's name, after one lease of waiting for it to die */
  protected async onStart(): Promise<void> {
    const { pod, isPatient } = this.options;
    const { signal } = this.#stopping;
    let heldSince: number | undefined;
    while (!signal.aborted) {
      // a Redis that goes away or refuses while this starts is waited for
      const [status] = await this.#renew('take').catch((error: unknown) => {
        if (!isPatient && PERMANENT.test(replyCode(error))) throw error;
        return ['unknown'] as const;
      });
      if (status === 'ok') break;
      if (status === 'held') heldSince ??= performance.now();
      if (status === 'held' && performance.now() - (heldSince ?? 0) > LEASE_MS + RENEW_MS)
        throw new FatalError(`another live process is pod ${JSON.stringify(pod)}: give each its own HOLDFAST_POD`);
      await sleep(RENEW_MS, signal);
    }
    this.#soundSince = this.#lastAnswerAt = this.#lastAskedAt = performance.now();
    this.#running = this.#renewForever();
  }

  protected async onStop(): Promise<void> {
    this.#stopping.abort();
    await within(500, this.#running);
    await within(
      500,
      this.leave(this.options.processId, false).catch(() => false),
    );
  }

  /** Processes whose lease runs, by Redis's clock. */
  async live(): Promise<readonly string[]> {
    const { connection, keys } = this.options;
    return (await connection.run(LIVE, [keys.processes], [])) as string[];
  }

  /** Takes a process out of the set. With `ifLapsed` only one whose lease has run out. */
  async leave(processId: string, ifLapsed: boolean): Promise<boolean> {
    const { connection, keys } = this.options;
    return (await connection.run(LEAVE, [keys.processes, keys.podNames], [processId, ifLapsed ? 'lapsed' : ''])) === 1;
  }

  async #renew(mode: 'take' | ''): Promise<[string, number, number, ...string[]]> {
    const { connection, keys, pod, processId } = this.options;
    const args = [processId, pod, LEASE_MS, mode];
    return (await connection.run(LEASE, [keys.processes, keys.podNames], args)) as [
      string,
      number,
      number,
      ...string[],
    ];
  }

  async #renewForever(): Promise<void> {
    const { signal } = this.#stopping;
    const { processId, onLapsed, onReturn, onLost } = this.options;
    while (!signal.aborted) {
      await sleep(RENEW_MS, signal);
      if (signal.aborted) return;
      const askedAt = performance.now();
      const [status, wall, had, ...lapsed] = await this.#renew('').catch(() => ['unknown', 0, 0] as const);
      const now = performance.now();
      // leases run by Redis's clock: when that one jumps, all of them are gone at once
      const jumpMs = Math.abs(wall - (this.#lastWall ?? wall) - (now - this.#lastAnswerAt));
      const isLate = now - askedAt > LEASE_MS / 2 || now - this.#lastAnswerAt > LEASE_MS;
      if (status === 'unknown' || isLate || jumpMs > LEASE_MS / 2) this.#soundSince = now;
      if (status === 'unknown') continue;
      // a late copy of a renewal may have brought the lease back before this one, after it had lapsed
      const mayHaveLapsed = had === 0 || now - this.#lastAskedAt > LEASE_MS;
      this.#lastAnswerAt = now;
      this.#lastAskedAt = askedAt;
      this.#lastWall = wall;
      if (status === 'lost') return this.#tell(onLost);
      if (mayHaveLapsed) this.#tell(onReturn);
      const others = lapsed.filter((id) => id !== processId);
      if (this.mayJudge) this.#tell(() => onLapsed(others));
    }
  }

  /** What listens may fail; the lease is renewed all the same, or others would take this process for dead. */
  #tell(say: () => void): void {
    try {
      say();
    } catch (error) {
      this.options.logger.error({ event: 'lease_error', err: error }, 'news of the lease could not be handled');
    }
  }
}
