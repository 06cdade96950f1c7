import { Redis } from 'ioredis';
import { sleep } from '../../src/core/sleep.js';
import { Keys } from '../../src/redis/keys.js';
import { decodeHeader } from '../../src/wire/envelope.js';
import { type Client, connect } from '../harness/client.js';
import { type FakeClock, startFakeClock } from '../harness/fake-time.js';
import { type Pod, startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { type RedisOptions, type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy, TcpProxy } from '../harness/tcp-proxy.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { type Account, accountOf, type Log, type Standing, withheldFrom } from './account.js';
import { Publishers } from './publishers.js';

const PODS = ['pod-a', 'pod-b'] as const;
const CLIENTS_PER_POD = 3;
const PROBE_MS = 200;
/** Of any clock that a scenario sets, the token stays good. */
const TOKEN_SECONDS = 3 * 3600;

/** Every event of the matrix goes through one partition. */
export const KEYS = new Keys('hf:').partition('events', 0);

export interface StageOptions {
  readonly redis?: RedisOptions;
  /** Each pod's wall clock can be moved. */
  readonly fakesTime?: boolean;
  /** A module that each pod loads first: for faults of the pod's own. */
  readonly preload?: string;
}

/** One probe of `/_readiness`; status 0: no answer. */
export interface Probe {
  readonly pod: string;
  readonly status: number;
  readonly at: number;
}

/**
 * Two relay pods, each behind a proxy of its own to one real Redis, clients on both, and steady publishers over sockets and
 * HTTP who try again with the same id.
 */
export class Stage implements AsyncDisposable {
  readonly probes: Probe[] = [];
  readonly #publishers: Publishers[] = [];
  #isOver = false;
  #probing: Promise<unknown> = Promise.resolve();

  #redis: RedisProcess;
  #admin: Redis;
  #proxies: readonly TcpProxy[];
  readonly #owned: AsyncDisposable[] = [];

  private constructor(
    redis: RedisProcess,
    proxies: readonly TcpProxy[],
    readonly pods: readonly Pod[],
    /** The first half on the first pod. */
    readonly clients: readonly Client[],
    readonly clocks: readonly FakeClock[],
  ) {
    this.#redis = redis;
    this.#admin = adminOf(redis);
    this.#proxies = proxies;
    this.owns(redis);
    for (const proxy of proxies) this.owns(proxy);
    this.#probing = Promise.all(pods.map((pod) => this.#probe(pod)));
  }

  static async start({ redis: redisOptions, fakesTime = false, preload = '' }: StageOptions = {}): Promise<Stage> {
    const redis = await startRedis({ aof: 'off', ...redisOptions });
    const proxies = await Promise.all(PODS.map(() => startTcpProxy(redis.port)));
    // a promise that is dropped ends the process, and so cannot pass unseen
    const node = `--unhandled-rejections=strict --import=data:text/javascript,${encodeURIComponent(preload)}`;
    const clocks = fakesTime ? await Promise.all(PODS.map(() => startFakeClock())) : [];
    const pods = await Promise.all(
      PODS.map((name, n) =>
        startPod({
          redisUrl: `redis://127.0.0.1:${proxies[n]?.port}`,
          name,
          env: { NODE_OPTIONS: node, HOLDFAST_DRAIN_MS: '200', ...clocks[n]?.env },
        }),
      ),
    );
    const clients: Client[] = [];
    for (const [n, pod] of pods.flatMap((pod) => Array.from({ length: CLIENTS_PER_POD }, () => pod)).entries()) {
      const jwt = await token({ sub: `user-${n}`, caps: ALL_CAPS, ttlSeconds: TOKEN_SECONDS });
      const client = await connect(pod.url, { token: jwt });
      for (const room of ['all', `room-${n % 2}`]) {
        const ack = await client.subscribe(room);
        if (!ack.ok) throw new Error(`subscribe: ${JSON.stringify(ack)}`);
      }
      clients.push(client);
    }
    return new Stage(redis, proxies, pods, clients, clocks);
  }

  get redis(): RedisProcess {
    return this.#redis;
  }

  /** Straight to Redis, past the proxies. */
  get admin(): Redis {
    return this.#admin;
  }

  /** One per pod. */
  get proxies(): readonly TcpProxy[] {
    return this.#proxies;
  }

  /** Ends with the stage. */
  owns(part: AsyncDisposable): void {
    this.#owned.push(part);
  }

  /** The pods' addresses lead to another Redis from now on; what is open to the old one is cut. */
  async moveTo(redis: RedisProcess): Promise<void> {
    const moved = this.#proxies.map(({ port }) => new TcpProxy(port, redis.port));
    for (const proxy of this.#proxies) await proxy.stop();
    for (const proxy of moved) {
      this.owns(proxy);
      await proxy.listen();
    }
    this.#admin.disconnect();
    [this.#redis, this.#admin, this.#proxies] = [redis, adminOf(redis), moved];
  }

  /** The newest load. */
  get publishers(): Publishers | undefined {
    return this.#publishers.at(-1);
  }

  /** A steady load, until `settle`: half of it to everybody, over sockets and HTTP of both pods. Resolves once it flows. */
  async publish(perSecond: number): Promise<Publishers> {
    const publishers = new Publishers({
      name: `load-${this.#publishers.length}`,
      pods: this.pods,
      clients: this.pods.map((_, n) => this.clients[n * CLIENTS_PER_POD] as Client),
      roomOf: (n) => (n % 2 === 0 ? 'all' : `room-${(n >> 1) % 2}`),
      perSecond,
    });
    this.#publishers.push(publishers);
    const before = this.clients.map(({ received }) => received.length);
    await eventually(() => this.clients.every(({ received }, n) => received.length >= (before[n] ?? 0) + 10), {
      withinMs: 15_000,
      what: 'the load to flow',
    });
    return publishers;
  }

  /** Resolves when an event that was offered after `since` at each pod has reached every client. */
  async liveAgain(since: number, withinMs: number): Promise<void> {
    await eventually(
      () => {
        const heard = this.publishers?.heard ?? [];
        const fresh = heard.filter(({ at, isAccepted, room }) => at >= since && isAccepted && room === 'all');
        for (const pod of this.pods)
          for (const client of this.clients) {
            const ids = new Set(client.received.slice(-200).map(({ meta }) => meta.id));
            if (!fresh.some(({ id, pod: by }) => by === pod.name && ids.has(id)))
              throw new Error(`nothing new of ${pod.name} at client ${this.clients.indexOf(client)}`);
          }
      },
      { withinMs, what: 'live delivery from both pods to every client' },
    );
  }

  /** Ends the load, waits for what is due, and compares publishers, log and subscribers. */
  async settle(withinMs = 10_000): Promise<Account> {
    await this.publishers?.stop();
    const log = await this.#log();
    await eventually(() => expectNone(withheldFrom(this.clients, log)), {
      withinMs,
      what: 'the last deliveries',
    }).catch(
      () => {}, // the account says which
    );
    return accountOf(
      log,
      this.#publishers.flatMap(({ offers }) => offers),
      this.clients,
    );
  }

  /** Ends clients, then pods by SIGTERM; resolves with the pods' exit codes. */
  async leave(): Promise<readonly (number | null)[]> {
    this.#isOver = true;
    await this.#probing;
    await Promise.all(this.clients.map((client) => client.stop()));
    const exits = await Promise.all(this.pods.map((pod) => pod.sigterm()));
    return exits.map(({ code }) => code);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isOver = true;
    await Promise.all(this.clients.map((client) => client.stop()));
    await Promise.all(this.pods.map((pod) => pod.stop()));
    this.#admin.disconnect();
    await Promise.all(this.#owned.map((part) => part[Symbol.asyncDispose]()));
  }

  async #log(): Promise<Log> {
    const offered = new Set(this.#publishers.flatMap(({ offers }) => offers).map(({ id }) => id));
    const log = new Map<number, Standing>();
    for (const [id, fields] of await this.admin.xrange(KEYS.stream, '-', '+')) {
      const [ms, offset] = id.split('-').map(Number) as [number, number];
      const header = decodeHeader(fields[1]?.split('\n', 1)[0] ?? '');
      if (header && offered.has(header.id)) log.set(offset, { id: header.id, ms, rooms: header.rooms });
    }
    return log;
  }

  async #probe(pod: Pod): Promise<void> {
    while (!this.#isOver) {
      const status = await fetch(`${pod.opsUrl}/_readiness`, { signal: AbortSignal.timeout(5000) }).then(
        (response) => response.status,
        () => 0,
      );
      if (!this.#isOver) this.probes.push({ pod: pod.name, status, at: Date.now() });
      await sleep(PROBE_MS);
    }
  }
}

function adminOf({ url }: RedisProcess): Redis {
  const admin = new Redis(url, { retryStrategy: () => 50, maxRetriesPerRequest: null });
  admin.on('error', () => {});
  return admin;
}

function expectNone(found: readonly string[]): boolean {
  if (found.length > 0) throw new Error(`${found.length} are missing, such as ${found[0]}`);
  return true;
}
