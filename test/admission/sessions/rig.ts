import { randomBytes } from 'node:crypto';
import { Redis } from 'ioredis';
import {
  DEFAULT_SESSION_SETTINGS,
  type Decision,
  type DeviceOf,
  DeviceSessions,
  type Holder,
  type SessionSettings,
} from '../../../src/admission/sessions/index.js';
import { silentLogger } from '../../../src/core/ports.js';
import { Pods } from '../../../src/pods/index.js';
import { Connection } from '../../../src/redis/connect.js';
import { Keys } from '../../../src/redis/keys.js';
import { scoped } from '../../../src/wire/names.js';
import { Counts } from '../../harness/counts.js';
import { eventually } from '../../harness/poll.js';

export const KEYS = new Keys('hf:');

let devices = 0;

export function someDevice(device = `device-${++devices}`): DeviceOf {
  return { tenant: 'default', user: `user-${++devices}`, device };
}

export function keysOf({ tenant, user, device }: DeviceOf, keys = KEYS) {
  return keys.session(scoped(tenant, user, device));
}

/** A connection in this process, and what became of it. */
export class TestHolder implements Holder {
  readonly id: string;
  evictions = 0;
  probes = 0;
  /** Its network is gone without a word: it never answers. */
  isHalfOpen = false;
  /** Of its answers. */
  delayMs = 0;

  constructor(processId: string) {
    this.id = `${processId}.${randomBytes(6).toString('base64url')}`;
  }

  async isAlive(): Promise<boolean> {
    this.probes++;
    if (this.isHalfOpen) return new Promise(() => {});
    await new Promise((resolve) => setTimeout(resolve, this.delayMs));
    return true;
  }

  evict(): void {
    this.evictions++;
  }
}

export interface Attempt {
  readonly holder: TestHolder;
  readonly decision: Decision;
  readonly ms: number;
}

export interface MemberOptions {
  readonly settings?: Partial<SessionSettings>;
  readonly keys?: Keys;
  /** The way to Redis that a cut, or a pause of this process, holds up. Default: `url`. */
  readonly through?: string;
}

/** One process's part in device sessions, in this process. */
export class Member implements AsyncDisposable {
  readonly counts = new Counts();
  readonly processId = randomBytes(9).toString('base64url');
  readonly pods: Pods;
  readonly sessions: DeviceSessions;
  readonly #keys: Keys;
  /** As every relay has a subscription of its own: it tells that the process is connected. */
  readonly #subscriber: Connection;

  constructor(url: string, { settings = {}, keys = KEYS, through = url }: MemberOptions = {}) {
    const { processId } = this;
    this.#keys = keys;
    const shared = { keys, processId, logger: silentLogger, meter: this.counts };
    this.pods = new Pods({
      ...shared,
      url: through,
      pod: processId,
      handOvers: [(dead) => this.sessions.buryProcess(dead)],
      onReturn: () => this.sessions.returnToLife(),
      onLost: () => {},
    });
    this.sessions = new DeviceSessions({
      ...shared,
      connection: this.pods.connection,
      inbox: this.pods.inbox,
      mayJudge: () => this.pods.mayJudge,
      isConnected: (other) => this.#isConnected(other),
      settings: { ...DEFAULT_SESSION_SETTINGS, ...settings },
    });
    this.#subscriber = new Connection({ url: through, name: processId });
    this.#subscriber.on('ready', () => {
      this.#subscriber.redis.subscribe(this.#keys.selfTest(processId)).catch(() => {});
    });
  }

  async start(): Promise<this> {
    await this.pods.start();
    await eventually(() => this.#isConnected(this.processId));
    await this.sessions.start();
    return this;
  }

  async #isConnected(processId: string): Promise<boolean> {
    const [, count] = await this.pods.connection.redis.pubsub('NUMSUB', this.#keys.selfTest(processId));
    return Number(count) > 0;
  }

  newHolder(): TestHolder {
    return new TestHolder(this.processId);
  }

  /** `isPaired: undefined`: nobody can say. Default: it is. */
  async connect(
    device: DeviceOf,
    options: { readonly isPaired?: boolean | undefined; readonly holder?: TestHolder } = {},
  ): Promise<Attempt> {
    const { holder = this.newHolder() } = options;
    const isPaired = 'isPaired' in options ? options.isPaired : true;
    const at = performance.now();
    const decision = await this.sessions.decide(device, holder, { isPaired });
    return { holder, decision, ms: performance.now() - at };
  }

  /** As after SIGKILL: Redis sees its connections closed, and nothing is answered any more. */
  vanish(): void {
    this.#subscriber.close();
    this.pods.connection.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#subscriber.close();
    await this.sessions.stop();
    await this.pods.stop();
  }
}

export function startMember(url: string, options: MemberOptions = {}): Promise<Member> {
  return new Member(url, options).start();
}

export function startMembers(count: number, url: string, options: MemberOptions = {}): Promise<Member[]> {
  return Promise.all(Array.from({ length: count }, () => startMember(url, options)));
}

/** `admitted:takeover`, `refused:session_settle` … */
export function outcome({ decision }: Attempt): string {
  return decision.is === 'admitted' ? `admitted:${decision.how}` : `refused:${decision.reason}`;
}

/** ms that a refused one was told to wait. */
export function waitOf(attempt: Attempt | undefined): number {
  if (attempt?.decision.is !== 'refused') throw new Error('it was not refused');
  return attempt.decision.retryAfterMs;
}

export function isAdmitted({ decision }: Attempt): boolean {
  return decision.is === 'admitted';
}

/** Attempts that were let in, and have not lost their device since. */
export function authoritative(attempts: readonly Attempt[]): readonly TestHolder[] {
  return attempts
    .filter(({ decision, holder }) => decision.is === 'admitted' && holder.evictions === 0)
    .map(({ holder }) => holder);
}

/** Looks at Redis all the time: who holds a device, from its first holder on. */
export class Watcher implements AsyncDisposable {
  /** Ids in their order; '' = nobody. */
  readonly seen: string[] = [];
  looks = 0;
  readonly #redis: Redis;
  #isWatching = true;
  readonly #watching: Promise<void>;

  constructor(url: string, key: string) {
    this.#redis = new Redis(url);
    this.#watching = this.#watch(key);
  }

  /** Times that nobody held it, once somebody had. */
  get offline(): number {
    return this.seen.filter((id) => id === '').length;
  }

  async #watch(key: string): Promise<void> {
    while (this.#isWatching) {
      const id = (await this.#redis.hget(key, 'id')) ?? '';
      this.looks++;
      const last = this.seen.at(-1);
      if (id !== last && !(id === '' && last === undefined)) this.seen.push(id);
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isWatching = false;
    await this.#watching;
    this.#redis.disconnect();
  }
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
