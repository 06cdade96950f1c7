import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, open, realpath, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import type { Writable } from 'node:stream';
import { fullJitter } from '../core/backoff.js';
import { FatalError } from '../core/errors.js';
import type { Logger } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep, within } from '../core/sleep.js';
import { askRedis, shutDownRedis } from './ask-redis.js';
import type { RedisBinary } from './find-redis.js';
import { freePort, isPortFree } from './ports.js';
import { parseObject, readIfThere, writePrivate } from './private-file.js';

/** How redis-server ended. */
export interface RedisExit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

export interface EmbeddedRedisOptions {
  /** Redis's own folder: data, settings, log. The caller holds the lock of the folder above. */
  readonly dir: string;
  readonly binary: RedisBinary;
  readonly logger: Logger;
  /** Told each time that redis-server ends by itself; it is started again without the caller's help. */
  readonly onExit?: (exit: RedisExit) => void;
}

/** Where a Redis listens, and the word that proves us to it. */
interface Address {
  readonly port: number;
  readonly password: string;
}

interface Running {
  readonly child: ChildProcessByStdio<Writable, null, null>;
  readonly exit: Promise<RedisExit>;
  readonly startedAt: number;
}

/**
 * `sh` between us and redis-server, both in a session of their own, so that Ctrl-C reaches only us. Its standard input is
 * a pipe that we hold: when we end, by kill -9 too, it reads the end of the pipe and sends TERM. A handler in this
 * process could not do that.
 */
const WATCHDOG = [
  'exec 3<&0 </dev/null',
  '"$0" "$1" 3<&- & server=$!',
  '(read -r _ <&3; kill -TERM $server 2>/dev/null) & watch=$!',
  'wait $server; code=$?',
  'kill $watch 2>/dev/null',
  'exit $code',
].join('\n');

const PORT_TRIES = 5;
const POLL_MS = 25;
/** From spawn to the first answer. Loading is an answer, and may take as long as it takes. */
const ANSWER_MS = 30_000;
/** Redis writes its log within this, or is killed. Kubernetes gives the whole relay 30 s. */
const STOP_MS = 10_000;
/** What listens on our port without answering may be our Redis in its last moments. */
const FADING_MS = 2000;
/** A Redis that lived for longer is healthy: its next end starts the back-off anew. */
const HEALTHY_MS = 10_000;

const urlOf = ({ port, password }: Address): string => `redis://:${password}@127.0.0.1:${port}`;

/** The URL of the Redis that serves `dir` now, if one does. */
export async function findRunning(dir: string): Promise<string | undefined> {
  const address = await readAddress(dir);
  if (!address) return undefined;
  const url = urlOf(address);
  return (await askRedis(url, await realpath(dir))) === 'none' ? undefined : url;
}

/**
 * A private redis-server that lives exactly as long as this process: on 127.0.0.1, behind a random password, with every
 * acknowledged write in its append-only file. Port and password stay the same over restarts for as long as nobody else takes the port.
 */
export class EmbeddedRedis extends Service {
  readonly #options: EmbeddedRedisOptions;
  readonly #stopping = new AbortController();
  #dir = '';
  #address: Address | undefined;
  #running: Running | undefined;
  #supervision: Promise<void> | undefined;

  constructor(options: EmbeddedRedisOptions) {
    super();
    this.#options = options;
  }

  /** With the password. Known once `start` has resolved, and fixed from then on. */
  get url(): string {
    if (!this.#address) throw new Error('the embedded Redis has not been started');
    return urlOf(this.#address);
  }

  /** @throws {FatalError} one line that says why redis-server does not come up */
  protected override async onStart(): Promise<void> {
    await mkdir(resolve(this.#options.dir), { recursive: true, mode: 0o700 });
    this.#dir = await realpath(this.#options.dir);
    const known = await readAddress(this.#dir);
    if (known) await this.#stopLeftover(known);
    const running = await this.#launchSomewhere(known);
    this.#supervision = this.#supervise(running);
  }

  protected override async onStop(): Promise<void> {
    this.#stopping.abort();
    if (this.#running) await end(this.#running);
    await this.#supervision;
  }

  async #launchSomewhere(known: Address | undefined): Promise<Running> {
    for (let tries = 0; tries < PORT_TRIES; tries++) {
      // a new word with a new port: whoever listens on the old one has been told the old one
      const address =
        known && tries === 0 ? known : { port: await freePort(), password: randomBytes(24).toString('base64url') };
      if (await isPortFree(address.port)) {
        try {
          const running = await this.#launch(address);
          this.#address = address;
          return running;
        } catch (error) {
          if (this.#stopping.signal.aborted || (await isPortFree(address.port))) throw error;
        }
      }
      this.#options.logger.warn({ port: address.port }, 'the port of the embedded Redis is taken, trying another');
    }
    throw new FatalError(`redis-server found no free port in ${PORT_TRIES} tries`);
  }

  /** Resolves once it answers with all its data; whatever it made is gone when it throws. */
  async #launch(address: Address): Promise<Running> {
    const { binary } = this.#options;
    const config = join(this.#dir, 'redis.conf');
    const log = join(this.#dir, 'redis.log');
    await writePrivate(config, settingsOf(address, this.#dir, log));
    // before it runs: a start after a crash finds whatever may be left
    await writePrivate(addressFile(this.#dir), JSON.stringify(address));
    const logStart = await stat(log).then(
      ({ size }) => size,
      () => 0,
    );
    if (this.#stopping.signal.aborted) throw stoppedWhileStarting();

    const running = run(binary, config);
    this.#running = running;
    try {
      await this.#untilReady(running, urlOf(address));
      return running;
    } catch (error) {
      await end(running);
      this.#running = undefined;
      if (this.#stopping.signal.aborted) throw error;
      throw new FatalError(`redis-server did not start: ${(await complaintIn(log, logStart)) ?? messageOf(error)}`);
    }
  }

  async #untilReady(running: Running, url: string): Promise<void> {
    let exit: RedisExit | undefined;
    void running.exit.then((how) => {
      exit = how;
    });
    let deadline = Date.now() + ANSWER_MS;
    for (;;) {
      const answer = await askRedis(url, this.#dir);
      if (this.#stopping.signal.aborted) throw stoppedWhileStarting();
      if (exit) throw new Error(`it ended with ${exit.signal ?? `code ${exit.code}`}`);
      if (answer === 'ready') return;
      if (answer === 'loading') deadline = Date.now() + ANSWER_MS;
      if (Date.now() > deadline) throw new Error(`no answer within ${ANSWER_MS / 1000} s`);
      await sleep(POLL_MS, this.#stopping.signal);
    }
  }

  /** Two servers on one append-only file would ruin it: a Redis of a former start has to end first. */
  async #stopLeftover(address: Address): Promise<void> {
    const url = urlOf(address);
    const isOurs = (await askRedis(url, this.#dir)) !== 'none';
    if (isOurs) {
      this.#options.logger.warn({ port: address.port }, 'stopping a redis-server that a former start left');
      await shutDownRedis(url);
    }
    const deadline = Date.now() + (isOurs ? STOP_MS : FADING_MS);
    while (!(await isPortFree(address.port))) {
      if (this.#stopping.signal.aborted) throw stoppedWhileStarting();
      if (Date.now() > deadline) {
        if (!isOurs) return;
        throw new FatalError(`a redis-server of a former start, on port ${address.port}, does not stop: kill it`);
      }
      await sleep(POLL_MS, this.#stopping.signal);
    }
  }

  async #supervise(first: Running): Promise<void> {
    const { logger, onExit } = this.#options;
    let attempt = 0;
    for (let running: Running | undefined = first; running; ) {
      const exit = await running.exit;
      // the watchdog alone may have been killed: the end of its pipe still reaches redis-server
      running.child.stdin.destroy();
      if (this.#stopping.signal.aborted) return;
      logger.error({ ...exit, log: join(this.#dir, 'redis.log') }, 'redis-server ended, starting it again');
      onExit?.(exit);
      attempt = Date.now() - running.startedAt > HEALTHY_MS ? 0 : attempt + 1;
      running = await this.#revive(attempt);
      if (running) logger.info({}, 'redis-server is back');
    }
  }

  /** On the same port, however long that takes: the relay's connections know no other. */
  async #revive(firstAttempt: number): Promise<Running | undefined> {
    const address = this.#address!;
    for (let attempt = firstAttempt; ; attempt++) {
      await sleep(20 + fullJitter(attempt, 50, 5000), this.#stopping.signal);
      if (this.#stopping.signal.aborted) return undefined;
      try {
        await this.#stopLeftover(address);
        return await this.#launch(address);
      } catch (error) {
        // the reason once, not per try
        const level = attempt === firstAttempt ? 'warn' : 'debug';
        if (!this.#stopping.signal.aborted)
          this.#options.logger[level]({ reason: messageOf(error) }, 'redis-server does not come back yet');
      }
    }
  }
}

function run({ file, env }: RedisBinary, config: string): Running {
  // its own small environment: ours may hold secrets
  const child = spawn('/bin/sh', ['-c', WATCHDOG, file, config], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
    env: { ...env },
  });
  child.stdin.on('error', () => {});
  const exit = new Promise<RedisExit>((settle) => {
    child.once('exit', (code, signal) => settle({ code, signal }));
    child.once('error', () => settle({ code: null, signal: null }));
  });
  return { child, exit, startedAt: Date.now() };
}

async function end({ child, exit }: Running): Promise<void> {
  child.stdin.destroy();
  if ((await within(STOP_MS, exit)) || child.pid === undefined) return;
  // the whole session: Redis gets no time to take, and the watchdog nothing to watch
  process.kill(-child.pid, 'SIGKILL');
  await exit;
}

function settingsOf({ port, password }: Address, dir: string, log: string): string {
  return [
    'bind 127.0.0.1',
    `port ${port}`,
    `requirepass ${password}`,
    `dir ${JSON.stringify(dir)}`,
    'appendonly yes',
    'appendfsync everysec',
    'save ""',
    'maxmemory-policy noeviction',
    'daemonize no',
    `logfile ${JSON.stringify(log)}`,
    '',
  ].join('\n');
}

const addressFile = (dir: string): string => join(dir, 'redis.json');

async function readAddress(dir: string): Promise<Address | undefined> {
  const { port, password } = parseObject(await readIfThere(addressFile(dir))) ?? {};
  return typeof port === 'number' && typeof password === 'string' ? { port, password } : undefined;
}

/** What redis-server wrote last as a warning since `start`, in bytes: the reason why it ended. */
async function complaintIn(log: string, start: number): Promise<string | undefined> {
  const file = await open(log).catch(() => undefined);
  if (!file) return undefined;
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(16_384), 0, 16_384, start);
    // 4242:M 01 Jan 2026 00:00:00.000 # Failed listening on port 6379 (tcp), aborting.
    const lines = buffer.subarray(0, bytesRead).toString().split('\n');
    return lines.flatMap((line) => /^\d+:\w .{15,30} # (.+)$/.exec(line)?.[1] ?? []).at(-1);
  } finally {
    await file.close();
  }
}

const stoppedWhileStarting = (): Error => new FatalError('redis-server was stopped while it started');

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
