import { mkdtemp, rm } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Binary, binary } from './binaries.js';
import { Child } from './child.js';
import { freePort } from './free-port.js';
import { eventually } from './poll.js';

export interface RedisOptions {
  /** `appendfsync`, or `off` for no AOF at all; default `everysec`, which a SIGKILL (not a power cut) loses nothing of. */
  readonly aof?: 'always' | 'everysec' | 'off';
  /** More lines of redis.conf: name → value. */
  readonly config?: Readonly<Record<string, string>>;
}

/** A real redis-server that can be killed, paused and started again with its data, port and URL. */
export class RedisProcess implements AsyncDisposable {
  readonly port: number;
  readonly url: string;
  readonly #dir: string;
  readonly #binary: Binary;
  readonly #options: RedisOptions;
  #child: Child | undefined;

  constructor(port: number, dir: string, program: Binary, options: RedisOptions) {
    this.port = port;
    this.url = `redis://127.0.0.1:${port}`;
    this.#dir = dir;
    this.#binary = program;
    this.#options = options;
  }

  get pid(): number {
    return this.#child?.pid ?? -1;
  }

  get logs(): readonly string[] {
    return this.#child?.lines ?? [];
  }

  /** Resolves when it answers PING, its data loaded. */
  async start(): Promise<void> {
    if (this.#child?.isRunning) return;
    const child = new Child(this.#binary.path, { args: this.#args(), env: { ...process.env, ...this.#binary.env } });
    this.#child = child;
    await eventually(async () => !child.isRunning || (await answers(this.port)), {
      withinMs: 15_000,
      what: `redis on port ${this.port}`,
    });
    if (!child.isRunning) throw new Error(`redis-server ended at once:\n${child.tail()}`);
  }

  /** SIGKILL; the data stays for `start()`. */
  async kill(): Promise<void> {
    await this.#child?.kill();
  }

  async restart(): Promise<void> {
    await this.kill();
    await this.start();
  }

  /** SIGSTOP: connections stay open, nothing is answered. */
  pause(): void {
    this.#child?.signal('SIGSTOP');
  }

  resume(): void {
    this.#child?.signal('SIGCONT');
  }

  async stop(): Promise<void> {
    await this.kill();
    await rm(this.#dir, { recursive: true, force: true });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  #args(): string[] {
    const { aof = 'everysec', config = {} } = this.#options;
    const settings: Record<string, string> = {
      port: String(this.port),
      bind: '127.0.0.1',
      dir: this.#dir,
      save: '',
      appendonly: aof === 'off' ? 'no' : 'yes',
      appendfsync: aof === 'off' ? 'everysec' : aof,
      ...config,
    };
    return Object.entries(settings).flatMap(([name, value]) => [`--${name}`, value]);
  }
}

export async function startRedis(options: RedisOptions = {}): Promise<RedisProcess> {
  const program = await binary('redis-server');
  const redis = new RedisProcess(await freePort(), await mkdtemp(join(tmpdir(), 'holdfast-redis-')), program, options);
  try {
    await redis.start();
  } catch (error) {
    await redis.stop();
    throw error;
  }
  return redis;
}

/** Up is +PONG, or the demand for a password; -LOADING is not. */
function answers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => socket.write('PING\r\n'));
    const done = (isUp: boolean): void => {
      socket.destroy();
      resolve(isUp);
    };
    socket.once('data', (data) => done(/^(\+PONG|-NOAUTH)/.test(data.toString())));
    socket.once('error', () => done(false));
    socket.once('close', () => done(false));
  });
}
