import { Redis } from 'ioredis';
import { eventually } from '../test/harness/poll.js';
import { type RedisProcess, startRedis } from '../test/harness/redis.js';
import { TEST_JWT_SECRET } from '../test/harness/token.js';
import { AdmissionDatabase, TENANT } from './admission-database.js';
import { cpuUs } from './cpu-time.js';
import { Monitor } from './monitor.js';
import { relaySettings } from './side.js';
import { Worker } from './worker.js';

/** Stock Socket.IO alone; the relay without a database; with Postgres; with tokens, too, that name a device. */
export type DoorName = 'bare' | 'redis' | 'postgres' | 'devices';

/** What one connect cost; NaN of a server that the side doesn't have. µs are of CPU. */
export interface ConnectRun {
  readonly podUs: number;
  readonly redisUs: number;
  readonly postgresUs: number;
  readonly statements: number;
  readonly perSecond: number;
  /** Commands to Redis that the pod sent, and that scripts ran inside it. */
  readonly sent: number;
  readonly inside: number;
}

const CONCURRENCY = 32;
const QUIET_MS = 100;
/** µs in that time that a pod without anything to do may need: heartbeats, and its sweeps. */
const QUIET_US = 3000;
/** Revalidation is no part of a connect, and would fall into some rounds and not into others. */
const SETTINGS = { HOLDFAST_ADMISSION_REVALIDATE_MS: '1h' };

interface Servers {
  readonly redis: RedisProcess | undefined;
  readonly database: AdmissionDatabase | undefined;
}

/** One way in: a pod, what it asks, and clients that come to it. */
export class AdmissionSide implements AsyncDisposable {
  /** The n-th person comes next; nobody comes twice, so no limit of reconnects or flapping is met. */
  #next = 0;

  private constructor(
    readonly name: DoorName,
    /** In the order of their start. */
    private readonly parts: readonly AsyncDisposable[],
    readonly servers: Servers,
    readonly pod: Worker,
    private readonly clients: Worker,
    private readonly port: number,
  ) {}

  /** @param people that come to it at most */
  static async start(name: DoorName, people: number): Promise<AdmissionSide> {
    const parts: AsyncDisposable[] = [];
    const keep = <T extends AsyncDisposable>(part: T): T => {
      parts.push(part);
      return part;
    };
    const hasDatabase = name === 'postgres' || name === 'devices';
    const clientSettings = { secret: TEST_JWT_SECRET, tenant: TENANT, hasDevices: name === 'devices' };
    try {
      const redis = name === 'bare' ? undefined : keep(await startRedis({ aof: 'off' }));
      const database = hasDatabase ? keep(await AdmissionDatabase.start(people)) : undefined;
      const pod = keep(await startPod(name, { redis, database }));
      const clients = keep(new Worker(`${name}, clients`, 'admission-clients.mjs', [JSON.stringify(clientSettings)]));
      return new AdmissionSide(name, parts, { redis, database }, pod, clients, await pod.ask<number>('listen'));
    } catch (error) {
      await stopAll(parts);
      throw error;
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return stopAll(this.parts);
  }

  /**
   * All are in by a decision, not for want of one; or this throws. They all leave in the end.
   *
   * @param watched so many come first, for their commands to be counted: MONITOR costs Redis more than they do
   * @param around the connects alone: a pod with a profiler isn't idle
   */
  async run(
    { count, watched }: { readonly count: number; readonly watched: number },
    around = (work: () => Promise<number>) => work(),
  ): Promise<ConnectRun> {
    await this.#forgotten();
    const commands = await this.#commands(watched);
    await this.#prepare(count);
    const before = await this.#spent();
    const wallUs = await around(() => this.#connect(count));
    // what is left to do after the last CONNECT counts too
    await this.#quiet();
    const after = await this.#spent();
    await this.#leave();
    const each = (what: keyof typeof before) => (after[what] - before[what]) / count;
    return {
      podUs: each('podUs'),
      redisUs: each('redisUs'),
      postgresUs: each('postgresUs'),
      statements: each('statements'),
      perSecond: count / (wallUs / 1e6),
      ...commands,
    };
  }

  /** What an idle pod sends is taken off. */
  async #commands(count: number): Promise<Pick<ConnectRun, 'sent' | 'inside'>> {
    if (!this.servers.redis) return { sent: Number.NaN, inside: Number.NaN };
    await this.#prepare(count);
    const connects = await this.#watched(async () => {
      await this.#connect(count);
      await this.#quiet();
    });
    const idle = await this.#watched(() => new Promise((resolve) => setTimeout(resolve, connects.ms)));
    const each = (what: 'sent' | 'inside') => (connects[what] - (idle[what] * connects.ms) / idle.ms) / count;
    return { sent: each('sent'), inside: each('inside') };
  }

  async #watched(work: () => Promise<unknown>) {
    let inside = 0;
    using monitor = await Monitor.start(this.servers.redis?.port ?? 0, (_, source) => {
      if (source === 'lua') inside++;
      return source.includes(':');
    });
    const startedAt = performance.now();
    await work();
    const ms = performance.now() - startedAt;
    return { sent: await monitor.stop(), inside, ms };
  }

  async #prepare(count: number): Promise<void> {
    await this.clients.ask('prepare', { from: this.#next, count });
    this.#next += count;
    await this.#quiet();
  }

  async #connect(count: number): Promise<number> {
    const before = await this.#decisions();
    const wallUs = await this.clients.ask<number>('connect', { port: this.port, concurrency: CONCURRENCY });
    const after = await this.#decisions();
    for (const [what, made] of Object.entries(after)) {
      const decided = made - (before[what] ?? 0);
      if (decided !== count) throw new Error(`${this.name}: ${count} connects, but ${decided} were ${what}`);
    }
    return wallUs;
  }

  /** Counts of the pod's own that each connect must raise by one. */
  async #decisions(): Promise<Readonly<Record<string, number>>> {
    if (this.name === 'bare') return {};
    const active = await this.#metric('holdfast_admission_checks_total{outcome="active"}');
    if (this.name !== 'devices') return { active };
    const admitted = await this.#metric('holdfast_session_decisions_total{decision="admit"}');
    return { active, 'admitted as the device': admitted };
  }

  async #metric(series: string): Promise<number> {
    const text = await this.pod.ask<string>('metrics');
    const line = text.split('\n').find((line) => line.startsWith(`${series} `));
    return Number(line?.slice(series.length));
  }

  async #leave(): Promise<void> {
    await this.clients.ask('leave');
    // presence lets go of somebody only a while after the socket: it would count as part of the next connects
    const isEmpty = async (): Promise<boolean> =>
      (await this.pod.ask('sockets')) === 0 &&
      (this.name === 'bare' || (await this.#metric('holdfast_presence_users')) === 0);
    await eventually(isEmpty, { withinMs: 60_000, what: `${this.name}: everybody to be gone` });
    await this.#quiet();
  }

  /** The pod lets go of what nobody needs any more, channels of rooms that have emptied, seconds later; others have their turn then. */
  async #forgotten(): Promise<void> {
    const { redis } = this.servers;
    if (!redis) return;
    const look = new Redis(redis.url);
    try {
      await eventually(async () => (await look.pubsub('CHANNELS', `*${TENANT}/*`)).length === 0, {
        withinMs: 60_000,
        what: `${this.name}: no channel of a room`,
      });
    } finally {
      look.disconnect();
    }
    await this.#quiet();
  }

  async #spent() {
    const { redis, database } = this.servers;
    return {
      podUs: await cpuUs(this.pod.pid),
      redisUs: redis ? await cpuUs(redis.pid) : Number.NaN,
      postgresUs: (await database?.cpu()) ?? Number.NaN,
      statements: (await database?.statements()) ?? Number.NaN,
    };
  }

  async #quiet(): Promise<void> {
    let last = await cpuUs(this.pod.pid);
    const isQuiet = async (): Promise<boolean> => {
      await new Promise((resolve) => setTimeout(resolve, QUIET_MS));
      const now = await cpuUs(this.pod.pid);
      const used = now - last;
      last = now;
      return used < QUIET_US;
    };
    await eventually(isQuiet, { withinMs: 60_000, what: `${this.name}: the pod to be idle` });
  }
}

async function startPod(name: DoorName, { redis, database }: Servers): Promise<Worker> {
  const isRelay = redis !== undefined;
  const more = { ...SETTINGS, ...(database && { DATABASE_URL: database.url }) };
  const settings = isRelay ? await relaySettings(redis.url, 'a', more) : { secret: TEST_JWT_SECRET };
  const file = isRelay ? 'relay.mjs' : 'admission-pod.mjs';
  return new Worker(`${name}, pod`, file, [JSON.stringify(settings)], ['--expose-gc']);
}

async function stopAll(parts: readonly AsyncDisposable[]): Promise<void> {
  for (const part of [...parts].reverse()) await part[Symbol.asyncDispose]();
}
