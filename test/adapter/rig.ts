import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { Registry } from 'prom-client';
import { Server, type ServerOptions, type Socket as ServerSocket } from 'socket.io';
import { io as connectTo, type ManagerOptions, type Socket, type SocketOptions } from 'socket.io-client';
import type { AdapterHost } from '../../src/adapter/host.js';
import { type AdapterOptions, createAdapter } from '../../src/adapter/index.js';
import { Child } from '../harness/child.js';
import { freePort } from '../harness/free-port.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';

export interface ServerSettings extends Partial<ServerOptions> {
  /** Of the adapter. */
  readonly options?: AdapterOptions;
  /** What createAdapter gets; default: an ioredis client that never connects, since only its options matter. */
  readonly redis?: unknown;
  /** Before the first client can come. */
  readonly onServer?: (io: Server) => void;
}

interface LogLine {
  readonly level: string;
  readonly event: unknown;
  readonly message: string;
}

let streams = 0;

/** Names that no other test has: servers with different ones don't hear each other. */
export function streamName(): string {
  return `s${process.pid}-${++streams}`;
}

/** A stock Socket.IO server with the adapter, in this process. */
export class TestServer implements AsyncDisposable {
  readonly logs: LogLine[] = [];
  readonly registry = new Registry();
  readonly io: Server;
  readonly #http = createServer();
  readonly #clients = new Set<TestClient>();

  constructor(redisUrl: string, settings: ServerSettings) {
    const { options, redis = new Redis(redisUrl, { lazyConnect: true }), onServer, ...server } = settings;
    const log = (level: string) => (fields: object, message: string) =>
      void this.logs.push({ level, event: (fields as { event?: unknown }).event, message });
    const logger = { debug: log('debug'), info: log('info'), warn: log('warn'), error: log('error') };
    this.io = new Server(this.#http, {
      adapter: createAdapter(redis, { logger, registry: this.registry, ...options }),
      ...server,
    });
    onServer?.(this.io);
  }

  get port(): number {
    return (this.#http.address() as AddressInfo).port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async listen(port = 0): Promise<this> {
    this.#http.listen(port, '127.0.0.1');
    await once(this.#http, 'listening');
    return this;
  }

  /** A connected stock client of this server. */
  async client(settings: ClientSettings = {}): Promise<TestClient> {
    const client = new TestClient(this.url, settings);
    this.#clients.add(client);
    await client.connected();
    return client;
  }

  /** What its namespaces share, for what no client can see. */
  get host(): AdapterHost {
    return (this.io.of('/').adapter as unknown as { host: AdapterHost }).host;
  }

  /** The server's side of a client. */
  socketOf({ socket }: TestClient, namespace = '/'): ServerSocket {
    const found = this.io.of(namespace).sockets.get(socket.id ?? '');
    if (!found) throw new Error('no such socket here');
    return found;
  }

  /** A connected client in these rooms. */
  async member(
    rooms: string | number | readonly (string | number)[],
    settings: ClientSettings = {},
  ): Promise<TestClient> {
    const client = await this.client(settings);
    const all = Array.isArray(rooms) ? rooms : [rooms];
    this.socketOf(client, settings.namespace).join(all as string[]);
    return client;
  }

  /** A metric, without its prefix. */
  async metric(series: string): Promise<number> {
    const line = (await this.registry.metrics()).split('\n').find((text) => text.startsWith(`holdfast_${series} `));
    return line === undefined ? Number.NaN : Number(line.split(' ').at(-1));
  }

  async stop(): Promise<void> {
    for (const client of this.#clients) client.stop();
    await this.io.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

export interface ClientSettings extends Partial<ManagerOptions & SocketOptions> {
  readonly namespace?: string;
}

interface Got {
  readonly event: string;
  readonly args: readonly unknown[];
}

/** A stock client that keeps what it gets, in order; events of the adapter itself apart. */
export class TestClient implements AsyncDisposable {
  readonly socket: Socket;
  readonly got: Got[] = [];
  readonly told: Got[] = [];
  readonly connects: boolean[] = [];
  readonly errors: Error[] = [];

  constructor(url: string, { namespace = '/', ...settings }: ClientSettings = {}) {
    this.socket = connectTo(`${url}${namespace}`, {
      transports: ['websocket'],
      forceNew: true,
      reconnectionDelay: 20,
      reconnectionDelayMax: 300,
      ...settings,
    });
    this.socket.on('connect', () => this.connects.push(this.socket.recovered));
    this.socket.on('connect_error', (error) => this.errors.push(error));
    this.socket.onAny((event: string, ...args: unknown[]) =>
      (event.startsWith('holdfast:') ? this.told : this.got).push({ event, args }),
    );
  }

  /** The first argument of each event of that name. */
  values(event = 'e'): unknown[] {
    return this.got.filter((got) => got.event === event).map(({ args }) => args[0]);
  }

  async connected(count = 1): Promise<void> {
    await eventually(() => this.connects.length >= count && this.socket.connected, {
      withinMs: 15_000,
      what: `connect number ${count} of a client (${this.errors.at(-1)?.message ?? 'no error'})`,
    });
  }

  async receives(values: readonly unknown[], event = 'e'): Promise<void> {
    await eventually(() => this.values(event).length >= values.length, {
      withinMs: 10_000,
      what: `${values.length} events; got ${JSON.stringify(this.values(event).slice(-10))}`,
    });
    if (JSON.stringify(this.values(event)) !== JSON.stringify(values))
      throw new Error(`got ${JSON.stringify(this.values(event))} instead of ${JSON.stringify(values)}`);
  }

  /** Cuts the transport under its feet; it comes back by itself. */
  cut(): void {
    this.socket.io.engine?.close();
  }

  /** Where it goes when it comes back. */
  moveTo(url: string): void {
    (this.socket.io as unknown as { uri: string }).uri = url;
  }

  stop(): void {
    this.socket.disconnect();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.stop();
  }
}

/** Servers of one stream on a Redis of their own. */
export class Cluster implements AsyncDisposable {
  readonly servers: TestServer[] = [];
  readonly name = streamName();

  constructor(
    readonly redis: RedisProcess,
    private readonly ownsRedis: boolean,
    readonly settings: ServerSettings,
  ) {}

  async add(settings: ServerSettings = {}, port = 0): Promise<TestServer> {
    const { options, ...rest } = { ...this.settings, ...settings };
    const all = { ...rest, options: { streamName: this.name, ...this.settings.options, ...options } };
    const server = new TestServer(this.redis.url, all);
    this.servers.push(server);
    await server.listen(port);
    return server;
  }

  /** Each knows all the others. */
  async gathered(count = this.servers.length): Promise<void> {
    for (const { io, host } of this.servers)
      await eventually(async () => host.isOpen && (await io.of('/').adapter.serverCount()) >= count, {
        withinMs: 10_000,
        what: `${count} servers`,
      });
  }

  async stop(): Promise<void> {
    await Promise.all(this.servers.map((server) => server.stop()));
    if (this.ownsRedis) await this.redis.stop();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

/** @param redis of the test file; without one the cluster starts its own */
export async function startCluster(
  count: number,
  settings: ServerSettings = {},
  redis?: RedisProcess,
): Promise<Cluster> {
  const cluster = new Cluster(redis ?? (await startRedis({ aof: 'off' })), redis === undefined, settings);
  try {
    for (let index = 0; index < count; index++) await cluster.add();
    await cluster.gathered();
  } catch (error) {
    await cluster.stop();
    throw error;
  }
  return cluster;
}

/** The present members of a cluster, by index. */
export function pair({ servers }: Cluster): [TestServer, TestServer] {
  const [a, b] = servers;
  if (!a || !b) throw new Error('two servers are wanted');
  return [a, b];
}

/** A server in a process of its own, from `dist/`, that can be killed: each client joins the rooms that its `auth` names. */
export class ServerProcess implements AsyncDisposable {
  #child: Child | undefined;

  constructor(
    readonly port: number,
    private readonly environment: Readonly<Record<string, string>>,
  ) {}

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get lines(): readonly string[] {
    return this.#child?.lines ?? [];
  }

  async start(): Promise<void> {
    const env = { ...process.env, ...this.environment, PORT: String(this.port) };
    const child = new Child(process.execPath, { args: [fileURLToPath(new URL('server.mjs', import.meta.url))], env });
    this.#child = child;
    await eventually(() => !child.isRunning || child.lines.includes('listening'), {
      withinMs: 45_000,
      what: 'a server',
    });
    if (!child.isRunning) throw new Error(`a server ended at once:\n${child.tail()}`);
  }

  async kill(): Promise<void> {
    await this.#child?.kill();
  }

  pause(): void {
    this.#child?.signal('SIGSTOP');
  }

  resume(): void {
    this.#child?.signal('SIGCONT');
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.kill();
  }
}

export async function startServerProcess(
  redisUrl: string,
  name: string,
  environment: Readonly<Record<string, string>> = {},
): Promise<ServerProcess> {
  const server = new ServerProcess(await freePort(), { REDIS_URL: redisUrl, STREAM: name, ...environment });
  await server.start();
  return server;
}
