import { fileURLToPath } from 'node:url';
import { Child } from '../harness/child.js';
import { freePort } from '../harness/free-port.js';
import { eventually } from '../harness/poll.js';
import { type ClientSettings, streamName, TestClient } from './rig.js';

export type Kind = 'old' | 'new';

export interface Target {
  readonly namespace?: string;
  readonly rooms?: readonly (string | number)[];
  readonly except?: readonly string[];
}

/** A server in a process of its own: with the streams adapter, or with ours on a bridge to it. */
export class MixedServer implements AsyncDisposable {
  readonly #clients: TestClient[] = [];

  constructor(
    readonly kind: Kind,
    private readonly port: number,
    private readonly child: Child,
  ) {}

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get lines(): readonly string[] {
    return this.child.lines;
  }

  /** Resolves with what the operation returned. */
  async does<T = unknown>(operation: string, options: object = {}): Promise<T> {
    const response = await fetch(`${this.url}/${operation}`, { method: 'POST', body: JSON.stringify(options) });
    const value: unknown = await response.json();
    if (!response.ok) throw new Error(String(value));
    return value as T;
  }

  /** A connected stock client in these rooms. */
  async client(
    rooms: readonly (string | number)[],
    settings: ClientSettings & { name?: string } = {},
  ): Promise<TestClient> {
    const { name, ...rest } = settings;
    const client = new TestClient(this.url, { auth: { rooms, name }, ...rest });
    this.#clients.push(client);
    await client.connected();
    return client;
  }

  /** Resolves when it has ended by itself. */
  async ends(): Promise<number | null> {
    await this.does('close');
    return (await this.child.exit).code;
  }

  /** SIGKILL. */
  async kill(): Promise<void> {
    await this.child.kill();
  }

  pause(): void {
    this.child.signal('SIGSTOP');
  }

  resume(): void {
    this.child.signal('SIGCONT');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const client of this.#clients) client.stop();
    await this.kill();
  }
}

/** Old and new servers on one Redis, with an old stream and a log of their own. */
export class Deploy implements AsyncDisposable {
  readonly servers: MixedServer[] = [];
  readonly log = streamName();

  constructor(
    readonly redisUrl: string,
    readonly oldStream = streamName(),
    private readonly environment: Readonly<Record<string, string>> = {},
  ) {}

  async add(kind: Kind, environment: Readonly<Record<string, string>> = {}): Promise<MixedServer> {
    const port = await freePort();
    const places = { PORT: String(port), REDIS_URL: this.redisUrl, NAME: this.log, STREAM: this.oldStream };
    const child = new Child(process.execPath, {
      args: [fileURLToPath(new URL('bridge-server.mjs', import.meta.url))],
      env: { ...process.env, ...places, KIND: kind, ...this.environment, ...environment },
    });
    const server = new MixedServer(kind, port, child);
    this.servers.push(server);
    await eventually(() => !child.isRunning || child.lines.includes('listening'), {
      withinMs: 45_000,
      what: 'a server',
    });
    if (!child.isRunning) throw new Error(`a server ended at once:\n${child.tail()}`);
    return server;
  }

  /** Each counts all of them. */
  async gathered(servers: readonly MixedServer[] = this.servers): Promise<void> {
    for (const server of servers)
      await eventually(async () => (await server.does('servers')) === servers.length, {
        withinMs: 10_000,
        what: `${servers.length} servers`,
      });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.servers.map((server) => server[Symbol.asyncDispose]()));
  }
}

/** Two old servers and two new ones: the middle of a rolling deploy. */
export async function startDeploy(deploy: Deploy): Promise<[MixedServer, MixedServer, MixedServer, MixedServer]> {
  const kinds = ['old', 'old', 'new', 'new'] as const;
  const servers = await Promise.all(kinds.map((kind) => deploy.add(kind)));
  await deploy.gathered();
  return servers as [MixedServer, MixedServer, MixedServer, MixedServer];
}

/** What is wrong with a sequence of `<emitter>-<n>`, of which each emitter made 1 to `count`. Empty: nothing. */
export function faultsOf(received: readonly unknown[], emitters: readonly string[], count: number): string[] {
  const faults: string[] = [];
  const newest = new Map(emitters.map((name) => [name, 0]));
  for (const value of received) {
    const [name = '', number] = String(value).split('-');
    const expected = (newest.get(name) ?? Number.NaN) + 1;
    if (Number(number) === expected) newest.set(name, expected);
    else faults.push(`${value} where ${name}-${expected} was due`);
  }
  for (const [name, last] of newest) if (last !== count) faults.push(`${name} ended at ${last} of ${count}`);
  return faults;
}
