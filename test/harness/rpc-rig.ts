import { Redis } from 'ioredis';
import { connect } from './client.js';
import { type Haproxy, startHaproxy } from './haproxy.js';
import { type Pod, spawnPod } from './pod.js';
import { eventually } from './poll.js';
import { type RedisOptions, type RedisProcess, startRedis } from './redis.js';
import { CallBook, Caller } from './rpc-calls.js';
import { type DaemonSettings, RpcDaemon } from './rpc-daemon.js';
import { GRACE_MS } from './rpc-ledger.js';
import { startTcpProxy, TcpProxy } from './tcp-proxy.js';
import { ALL_CAPS, token } from './token.js';

export interface RigOptions {
  /** Default 3. */
  readonly pods?: number;
  readonly redis?: RedisOptions;
  /** Each pod reaches Redis over a proxy of its own. */
  readonly proxied?: boolean;
  readonly env?: Readonly<Record<string, string>>;
  /** The machine is its own: each outcome is due within the ledger's grace. Default: within a second more. */
  readonly isAlone?: boolean;
}

export interface DaemonOptions extends Partial<Omit<DaemonSettings, 'url' | 'users' | 'file'>> {
  /** One socket each; default one user that no other test has. */
  readonly users?: readonly string[];
  /** Default `['work']`. */
  readonly methods?: readonly string[];
  /** Default the balancer. */
  readonly url?: string;
}

/** A daemon's process that has registered. */
export interface Served {
  readonly daemon: RpcDaemon;
  /** Of its first socket. */
  readonly user: string;
}

/** A process with one daemon on each pod. */
export interface Spread {
  readonly daemon: RpcDaemon;
  /** By where it was at the start. */
  userOn(pod: Pod): string;
  indexOf(pod: Pod): number;
}

/** Three at once on a busy machine. */
const BOOT_MS = 60_000;

const LIMITS = { HOLDFAST_GATEWAY_MESSAGES_PER_SECOND: '100000' };

let users = 0;

/** A user that no other test has. */
export function someone(name = 'user'): string {
  return `${name}-${++users}`;
}

/** Three relay pods behind a real balancer, and an account of all calls. */
export class RpcRig implements AsyncDisposable {
  #redis: RedisProcess;
  #admin: Redis;
  #proxies: readonly TcpProxy[];
  readonly #owned: AsyncDisposable[];

  private constructor(
    redis: RedisProcess,
    proxies: readonly TcpProxy[],
    readonly pods: readonly Pod[],
    readonly haproxy: Haproxy,
    readonly book: CallBook,
    owned: AsyncDisposable[],
  ) {
    this.#redis = redis;
    this.#admin = adminOf(redis);
    this.#proxies = proxies;
    this.#owned = owned;
  }

  static async start({
    pods: count = 3,
    redis: redisOptions,
    proxied = false,
    env = {},
    isAlone = false,
  }: RigOptions = {}) {
    const owned: AsyncDisposable[] = [];
    const own = <T extends AsyncDisposable>(part: T): T => {
      owned.push(part);
      return part;
    };
    try {
      const redis = own(await startRedis({ aof: 'off', ...redisOptions }));
      const names = Array.from({ length: count }, (_, index) => `pod-${index}`);
      const proxies: TcpProxy[] = [];
      for (const _ of proxied ? names : []) proxies.push(own(await startTcpProxy(redis.port)));
      const pods: Pod[] = [];
      for (const [index, name] of names.entries())
        pods.push(
          own(
            await spawnPod({
              redisUrl: proxied ? `redis://127.0.0.1:${proxies[index]?.port}` : redis.url,
              name,
              // a promise that is dropped ends the process, and so cannot pass unseen
              env: { NODE_OPTIONS: '--unhandled-rejections=strict', HOLDFAST_DRAIN_MS: '2000', ...LIMITS, ...env },
            }),
          ),
        );
      const backends = pods.map(({ port, opsPort }) => ({ host: '127.0.0.1', port, opsPort }));
      const [haproxy] = await Promise.all([
        startHaproxy({ backends }).then(own),
        ...pods.map((pod) => pod.ready(BOOT_MS)),
      ]);
      const book = own(await CallBook.open(GRACE_MS + (isAlone ? 0 : 1000)));
      const rig = new RpcRig(redis, proxies, pods, haproxy, book, owned);
      await rig.allUp();
      return rig;
    } catch (error) {
      for (const part of owned.reverse()) await part[Symbol.asyncDispose]();
      throw error;
    }
  }

  get redis(): RedisProcess {
    return this.#redis;
  }

  /** Straight to Redis, past the proxies. */
  get admin(): Redis {
    return this.#admin;
  }

  /** One per pod of a rig that is `proxied`. */
  get proxies(): readonly TcpProxy[] {
    return this.#proxies;
  }

  /** Ends with the rig, before what the rig itself is made of. */
  owns<T extends AsyncDisposable>(part: T): T {
    this.#owned.push(part);
    return part;
  }

  async allUp(): Promise<void> {
    await eventually(async () => (await this.haproxy.up()).every(Boolean), {
      withinMs: 30_000,
      what: 'all pods up at haproxy',
    });
  }

  /** After its exit: same name, same ports. Resolves when the balancer sends clients there. */
  async startAgain(pod: Pod): Promise<void> {
    await pod.start().catch(() => pod.ready(BOOT_MS));
    await this.allUp();
  }

  /** The pods' addresses lead to another Redis from now on; what is open to the old one is cut. */
  async moveTo(redis: RedisProcess): Promise<void> {
    const moved = this.#proxies.map(({ port }) => new TcpProxy(port, redis.port));
    for (const proxy of this.#proxies) await proxy.stop();
    for (const proxy of moved) await this.owns(proxy).listen();
    this.#admin.disconnect();
    [this.#redis, this.#admin, this.#proxies] = [redis, adminOf(redis), moved];
  }

  async daemon(options: DaemonOptions = {}): Promise<Served> {
    const { users: subs = [someone('machine')], methods = ['work'], ...rest } = options;
    const settings = {
      url: this.haproxy.url,
      kind: 'instance',
      handlerMs: 0,
      file: this.book.file,
      registers: 'always',
      reconnectionDelayMs: 400,
      users: await Promise.all(subs.map(async (sub) => ({ token: await token({ sub, caps: ALL_CAPS }), methods }))),
      ...rest,
    } as const;
    const daemon = this.owns(new RpcDaemon(settings));
    await daemon.registered({ withinMs: BOOT_MS + subs.length * 200 });
    return { daemon, user: subs[0] as string };
  }

  async caller(user = someone('caller'), url = this.haproxy.url): Promise<Caller> {
    const client = await connect(url, { token: await token({ sub: user, caps: ALL_CAPS }), ackMs: 60_000 });
    return this.owns(new Caller(client, user, this.book));
  }

  /** Of a user: method → the process that serves it, or `-` while its daemon is away. */
  async methodsOf(user: string): Promise<ReadonlyMap<string, string>> {
    const entries = await this.admin.hgetall(`hf:rpc:{default/${user}}:@reg`);
    return new Map(Object.entries(entries).map(([method, entry]) => [method, entry.split('|')[1] ?? '']));
  }

  /** Which pod holds the registration of a method. */
  async podOf(user: string, method = 'work'): Promise<Pod> {
    let pod: Pod | undefined;
    await eventually(
      async () => {
        const [methods, names] = await Promise.all([this.methodsOf(user), this.admin.hgetall('hf:{pods}:names')]);
        pod = this.pods.find(({ name }) => names[name] !== undefined && names[name] === methods.get(method));
        return pod !== undefined;
      },
      { what: `${user}/${method} to be registered`, withinMs: 10_000 },
    );
    return pod as Pod;
  }

  /** One process with a daemon on each pod: the balancer spreads what connects in turn. */
  async daemonPerPod(options: Omit<DaemonOptions, 'users'> = {}): Promise<Spread> {
    for (let tries = 0; tries < 10; tries++) {
      const subs = this.pods.map(() => someone('machine'));
      const { daemon } = await this.daemon({ ...options, users: subs });
      const pods = await Promise.all(subs.map((sub) => this.podOf(sub, options.methods?.[0])));
      if (new Set(pods).size === this.pods.length) {
        const userOn = (pod: Pod): string => subs[pods.indexOf(pod)] as string;
        return { daemon, userOn, indexOf: (pod) => pods.indexOf(pod) };
      }
      await daemon.kill();
    }
    throw new Error('the balancer did not spread the daemons');
  }

  /** Nothing tells a caller's pod but a registration of its own. */
  async podOfCaller({ client, user }: Caller): Promise<Pod> {
    const method = someone('here');
    const ack = await client.request('rpc-register', { method });
    if (!ack.ok) throw new Error(`register: ${JSON.stringify(ack)}`);
    const pod = await this.podOf(user, method);
    await client.request('rpc-unregister', { method });
    return pod;
  }

  /** One caller on each pod. */
  async callerPerPod(): Promise<(pod: Pod) => Caller> {
    const found = new Map<Pod, Caller>();
    for (let tries = 0; found.size < this.pods.length; tries++) {
      if (tries === 30) throw new Error('the balancer did not spread the callers');
      const caller = await this.caller();
      const pod = await this.podOfCaller(caller);
      if (found.has(pod)) await caller.client.stop();
      else found.set(pod, caller);
    }
    return (pod) => found.get(pod) as Caller;
  }

  /** Names of keys that match, one for one; `*` and `?` are Redis's. */
  keys(pattern: string): Promise<string[]> {
    return this.admin.keys(`hf:${pattern}`);
  }

  async metric(pod: Pod, series: string): Promise<number> {
    return (await pod.metrics()).get(series) ?? Number.NaN;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#admin.disconnect();
    for (const part of this.#owned.reverse()) await part[Symbol.asyncDispose]();
  }
}

function adminOf({ url }: RedisProcess): Redis {
  const admin = new Redis(url, { retryStrategy: () => 50, maxRetriesPerRequest: null });
  admin.on('error', () => {});
  return admin;
}
