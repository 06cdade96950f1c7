import { freePort } from '../test/harness/free-port.js';
import { TEST_API_KEY } from '../test/harness/pod.js';
import { eventually } from '../test/harness/poll.js';
import { type RedisProcess, startRedis } from '../test/harness/redis.js';
import { ALL_CAPS, TEST_JWT_SECRET, token } from '../test/harness/token.js';
import { Monitor } from './monitor.js';
import { Worker } from './worker.js';

export type SideName = 'holdfast' | 'streams' | 'pubsub' | 'relay' | 'floor';

/** What is published: `count` events, the k-th to `rooms[k % rooms.length]` (plan.mjs). */
export interface Plan {
  readonly count: number;
  readonly rooms: readonly string[];
}

/** As fast as the publisher can while its event loop has its turns. */
export const BURST = Number.POSITIVE_INFINITY;

export interface PublishOptions {
  /** Evenly spaced, or `BURST`. */
  readonly perSecond: number;
  readonly isTimed?: boolean;
  readonly withinMs?: number;
}

/** What publishing and delivering one plan cost. */
export interface Run {
  readonly events: number;
  readonly deliveries: number;
  /** µs of CPU of the pod with the sockets, and of the pod that published; NaN where its HTTP client's can't be told apart. */
  readonly receivingUs: number;
  readonly sendingUs: number;
  /** From the first event's publication to the last one's arrival. */
  readonly wallMs: number;
  /** From publication to arrival, of all deliveries; of timed runs. */
  readonly p50Ms: number;
  readonly p99Ms: number;
}

interface Arrival {
  readonly arrivedAt: number;
  readonly p50: number;
  readonly p99: number;
}

const QUIET_MS = 100;
/** µs in that time that a server without anything to do may need: heartbeats, and our question. */
const QUIET_US = 3000;

/** What isn't one of the adapters. */
const PROGRAMS: Partial<Record<SideName, string>> = { relay: 'relay.mjs', floor: 'floor.mjs' };

/** One contestant: a Redis of its own, pod A with the sockets, pod B that publishes through the adapter, and the clients. */
export class Side implements AsyncDisposable {
  private constructor(
    readonly name: SideName,
    private readonly server: RedisProcess,
    readonly receiving: Worker,
    readonly sending: Worker,
    readonly clients: Worker,
    /** Where and with what clients connect. */
    readonly address: { readonly port: number; readonly token?: string },
  ) {}

  /** @param options of the adapter; only Holdfast's has any */
  static async start(name: SideName, options: object = {}): Promise<Side> {
    const server = await startRedis({ aof: 'off' });
    const pod = async (pod: string): Promise<Worker> => {
      const settings =
        name === 'relay' ? await relaySettings(server.url, pod) : { name, redisUrl: server.url, options };
      return new Worker(
        `${name}, pod ${pod}`,
        PROGRAMS[name] ?? 'pod.mjs',
        [JSON.stringify(settings)],
        ['--expose-gc'],
      );
    };
    const [receiving, sending, clients] = [
      await pod('a'),
      await pod('b'),
      new Worker(`${name}, clients`, 'clients.mjs'),
    ];
    const [port] = await Promise.all([receiving.ask<number>('listen'), sending.ask('listen')]);
    const address = { port, ...(name === 'relay' && { token: await token({ sub: 'u', caps: ALL_CAPS }) }) };
    return new Side(name, server, receiving, sending, clients, address);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([this.receiving, this.sending, this.clients].map((worker) => worker[Symbol.asyncDispose]()));
    await this.server.stop();
  }

  /** Subscribers that are in their rooms, the i-th in `rooms[i % rooms.length]`, and that hear what the other pod publishes. */
  async connect(count: number, rooms: readonly (readonly string[])[], concurrency?: number): Promise<void> {
    await this.clients.ask('connect', { ...this.address, count, rooms, concurrency });
    const plan = { count: 1, rooms: [rooms[0]?.[0] as string] };
    await eventually(
      async () => {
        await this.clients.ask('expect', { plan, isProbe: true });
        await this.sending.ask('publish', { plan, perSecond: BURST });
        await this.clients.ask('arrived', { withinMs: 500 });
      },
      { withinMs: 20_000, what: `${this.name}: the pods to hear each other` },
    );
    await this.quiet();
  }

  async leave(): Promise<void> {
    await this.clients.ask('leave');
    await this.hasSockets(0);
    await this.quiet();
  }

  /** As if every client's cable was cut, and the pod has noticed. */
  async cutAll(): Promise<void> {
    await this.clients.ask('cut');
    await this.hasSockets(0);
    await this.quiet();
  }

  private async hasSockets(count: number): Promise<void> {
    const what = `${this.name}: ${count} sockets`;
    await eventually(async () => (await this.receiving.ask('sockets')) === count, { withinMs: 30_000, what });
  }

  /** Publishes a plan and waits until everybody received their part, exactly. */
  async publish(plan: Plan, { perSecond, isTimed = false, withinMs = 60_000 }: PublishOptions): Promise<Run> {
    const deliveries = await this.clients.ask<number>('expect', { plan, isTimed });
    const [receivingFrom, sendingFrom] = await this.cpu();
    const { startedAt } = await this.sending.ask<{ startedAt: number }>('publish', { plan, perSecond });
    const { arrivedAt, p50, p99 } = await this.clients.ask<Arrival>('arrived', { withinMs });
    // what is left to do after the last arrival counts too
    await this.quiet();
    const [receivingTo, sendingTo] = await this.cpu();
    return {
      events: plan.count,
      deliveries,
      receivingUs: receivingTo - receivingFrom,
      sendingUs: this.name === 'relay' ? Number.NaN : sendingTo - sendingFrom,
      wallMs: (arrivedAt - startedAt) / 1000,
      p50Ms: p50 / 1000,
      p99Ms: p99 / 1000,
    };
  }

  /** µs of CPU so far, of the pod with the sockets and of the pod that publishes. */
  cpu(): Promise<[number, number]> {
    return Promise.all([this.receiving.ask<number>('cpu'), this.sending.ask<number>('cpu')]);
  }

  /** Bytes that the pod with the sockets has in use, once its garbage is gone. */
  memory(): Promise<number> {
    return this.receiving.ask('memory');
  }

  /** Both pods have nothing left to do. */
  async quiet(): Promise<void> {
    let last = await this.cpu();
    const isQuiet = async (): Promise<boolean> => {
      await new Promise((resolve) => setTimeout(resolve, QUIET_MS));
      const now = await this.cpu();
      const used = Math.max(now[0] - last[0], now[1] - last[1]);
      last = now;
      return used < QUIET_US;
    };
    await eventually(isQuiet, { withinMs: 60_000, what: `${this.name}: both pods to be idle` });
  }

  /** How often Redis is asked for entries of a stream during the work, by anybody, also from inside a script. */
  async countingReads<Result>(work: () => Promise<Result>): Promise<[Result, number]> {
    using monitor = await Monitor.start(this.server.port, isReadOfEntries);
    const result = await work();
    return [result, await monitor.stop()];
  }
}

/** Of `relay.mjs`. */
export async function relaySettings(redisUrl: string, pod: string, more: Readonly<Record<string, string>> = {}) {
  const env = {
    PORT: String(await freePort()),
    OPS_PORT: String(await freePort()),
    HOLDFAST_HOST: '127.0.0.1',
    HOLDFAST_OPS_HOST: '127.0.0.1',
    REDIS_URL: redisUrl,
    HOLDFAST_POD: pod,
    HOLDFAST_JWT_SECRET: TEST_JWT_SECRET,
    HOLDFAST_API_KEYS: TEST_API_KEY,
    ...more,
  };
  return { env, apiKey: TEST_API_KEY };
}

/** Not a look whether one entry is there, or which is the first: heartbeats do so too. */
function isReadOfEntries([name = '', , start, end, , count]: readonly string[]): boolean {
  return /^xrange$/i.test(name) && start !== end && count !== '1';
}
