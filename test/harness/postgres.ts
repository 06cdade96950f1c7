import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { chmod, cp, mkdir, mkdtemp, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Client } from 'pg';
import { fetchFromApt } from '../../src/embedded/apt.js';
import { Child } from './child.js';
import { freePort } from './free-port.js';
import { eventually } from './poll.js';

export interface PostgresOptions {
  /** Whether a commit waits for the disk; default `false`. A killed process loses nothing either way. */
  readonly isDurable?: boolean;
  /** More lines of postgresql.conf: name → value. */
  readonly config?: Readonly<Record<string, string>>;
}

/** Where `postgres` and `initdb` are, and what they need to run. */
interface Programs {
  readonly folder: string;
  readonly env: Readonly<Record<string, string>>;
}

const CACHE = fileURLToPath(new URL('../../.cache', import.meta.url));
/** The user `nobody` may not be able to reach a checkout, such as one below `/root`. */
const OPEN_CACHE = '/var/tmp/holdfast-tests';
const USER = 'holdfast';
const PASSWORD = 'a-password-of-tests';
/** Of the user `nobody` everywhere: Postgres refuses to run as root. */
const NOBODY = 65_534;
const SHUTDOWNS = { smart: 'SIGTERM', fast: 'SIGINT', immediate: 'SIGQUIT' } as const;
const IS_ROOT = process.getuid?.() === 0;

const execute = promisify(execFile);

/** A real Postgres that can be killed, paused and started again with its data, port and URL. */
export class PostgresProcess implements AsyncDisposable {
  readonly port: number;
  /** Of the database `postgres`, with the password. */
  readonly url: string;
  readonly #dir: string;
  readonly #programs: Programs;
  readonly #options: PostgresOptions;
  #child: Child | undefined;
  /** While it is paused: all of its processes, and who ends them if this one can't. */
  #paused: { readonly pids: readonly number[]; readonly guard: ChildProcess } | undefined;
  #databases = 0;

  constructor(port: number, dir: string, programs: Programs, options: PostgresOptions) {
    this.port = port;
    this.url = `postgres://${USER}:${PASSWORD}@127.0.0.1:${port}/postgres`;
    this.#dir = dir;
    this.#programs = programs;
    this.#options = options;
  }

  get pid(): number {
    return this.#child?.pid ?? -1;
  }

  get logs(): readonly string[] {
    return this.#child?.lines ?? [];
  }

  /** Resolves when it takes a query, its data recovered. */
  async start(): Promise<void> {
    if (this.#child?.isRunning) return;
    const [command, ...args] = asUser([join(this.#programs.folder, 'postgres'), ...this.#args()]);
    const env = { ...process.env, ...this.#programs.env };
    const child = new Child(command as string, { args, env, cwd: this.#dir });
    this.#child = child;
    await eventually(async () => !child.isRunning || (await answers(this.url)), {
      withinMs: 15_000,
      what: `postgres on port ${this.port}`,
    });
    if (!child.isRunning) throw new Error(`postgres ended at once:\n${child.tail()}`);
  }

  /** SIGKILL to all of its processes; the data stays for `start()`. */
  async kill(): Promise<void> {
    // the first one may be gone, and those that are paused would not notice
    const family = [...(await this.#family()), ...(this.#paused?.pids ?? [])];
    // first the one that would restart the others
    this.#child?.signal('SIGKILL');
    for (const pid of family) send(pid, 'SIGKILL');
    await this.#child?.exit;
    this.#dismissGuard();
    await eventually(async () => !(await isAnyAlive(family)), { what: 'the end of every process of postgres' });
  }

  /**
   * `smart` lets those end that are connected and tells others 57P03, `fast` rolls back and tells clients 57P01, `immediate`
   * cuts them off. The data is kept.
   */
  async shutDown(how: keyof typeof SHUTDOWNS = 'fast'): Promise<void> {
    this.#child?.signal(SHUTDOWNS[how]);
    await this.#child?.exit;
  }

  async restart(): Promise<void> {
    await this.kill();
    await this.start();
  }

  /** SIGSTOP to all of its processes: connections stay open, nothing is answered. */
  async pause(): Promise<void> {
    const child = this.#child;
    if (!child?.isRunning || this.#paused) return;
    child.signal('SIGSTOP');
    // until then it may still make another
    await eventually(async () => !child.isRunning || (await stateOf(child.pid)) === 'T', { what: 'postgres to stand' });
    const pids = [child.pid, ...(await this.#family())];
    this.#paused = { pids, guard: guard(pids) };
    for (const pid of pids) send(pid, 'SIGSTOP');
  }

  async resume(): Promise<void> {
    for (const pid of this.#paused?.pids.toReversed() ?? []) send(pid, 'SIGCONT');
    this.#dismissGuard();
  }

  /** After its processes have gone on or ended: their ids may be others' then. */
  #dismissGuard(): void {
    this.#paused?.guard.stdin?.end('\n');
    this.#paused = undefined;
  }

  /** A new, empty database of this server. */
  async createDatabase(): Promise<string> {
    const name = `d${++this.#databases}_${process.pid}`;
    await this.query(`create database ${name}`);
    return this.urlOf(name);
  }

  /** For whoever connects in place of its users. */
  get login(): string {
    return `host=127.0.0.1 port=${this.port} user=${USER} password=${PASSWORD}`;
  }

  urlOf(database: string, port = this.port): string {
    return `postgres://${USER}:${PASSWORD}@127.0.0.1:${port}/${database}`;
  }

  /** One statement over a connection of its own, for whoever looks at the server from outside. */
  async query(text: string, values: unknown[] = [], url = this.url): Promise<Record<string, unknown>[]> {
    const client = new Client(url);
    await client.connect();
    try {
      return (await client.query(text, values)).rows;
    } finally {
      await client.end();
    }
  }

  async stop(): Promise<void> {
    await this.kill();
    await rm(this.#dir, { recursive: true, force: true });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  #args(): string[] {
    const { isDurable = false, config = {} } = this.#options;
    const settings: Record<string, string> = {
      port: String(this.port),
      listen_addresses: '127.0.0.1',
      unix_socket_directories: '',
      fsync: isDurable ? 'on' : 'off',
      max_connections: '60',
      shared_buffers: '16MB',
      autovacuum: 'off',
      ...config,
    };
    return [
      '-D',
      join(this.#dir, 'data'),
      ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
    ];
  }

  /** Its processes besides the first: each connection has one. */
  async #family(): Promise<number[]> {
    if (!this.#child?.isRunning) return [];
    const text = await readFile(`/proc/${this.pid}/task/${this.pid}/children`, 'utf8').catch(() => '');
    return text.split(' ').filter(Boolean).map(Number);
  }
}

export async function startPostgres(options: PostgresOptions = {}): Promise<PostgresProcess> {
  const programs = await findPrograms();
  const template = await templateOf(programs);
  const dir = await ownFolder();
  const postgres = new PostgresProcess(await freePort(), dir, programs, options);
  try {
    await copyFolder(template, join(dir, 'data'));
    await postgres.start();
  } catch (error) {
    await postgres.stop();
    throw error;
  }
  return postgres;
}

/** Debian keeps Postgres out of PATH: the program there is a wrapper. */
async function findPrograms(): Promise<Programs> {
  const path = (process.env.PATH ?? '').split(delimiter).filter((place) => place !== '');
  const places = [...(await versionsBelow('/usr/lib/postgresql')), ...path, '/usr/local/bin', '/opt/homebrew/bin'];
  for (const folder of places)
    if ((await isThere(join(folder, 'postgres'))) && (await isThere(join(folder, 'initdb'))))
      return { folder, env: {} };
  const { root, env } = await fetchFromApt(['postgresql'], join(IS_ROOT ? OPEN_CACHE : CACHE, 'postgresql'));
  const [folder] = await versionsBelow(join(root, 'usr/lib/postgresql'));
  if (folder === undefined) throw new Error('postgres: not on this machine, and not in the package postgresql');
  return { folder, env };
}

/** The newest first. */
async function versionsBelow(folder: string): Promise<string[]> {
  const names = await readdir(folder).catch(() => []);
  return names.sort((a, b) => Number(b) - Number(a)).map((name) => join(folder, name, 'bin'));
}

/** An empty cluster, made once per machine and version: `initdb` takes seconds, a copy of this a moment. */
async function templateOf({ folder, env }: Programs): Promise<string> {
  const run = { env: { ...process.env, ...env } };
  const { stdout } = await execute(join(folder, 'postgres'), ['--version'], run);
  const template = join(CACHE, `postgres-template-${/[\d.]+/.exec(stdout)?.[0]}-${IS_ROOT ? 'root' : 'user'}`);
  if (await isThere(template)) return template;
  const work = await ownFolder();
  try {
    const password = join(work, 'password');
    await writeFile(password, PASSWORD);
    await chmod(password, 0o644);
    const options = ['--auth=scram-sha-256', `--pwfile=${password}`, '--no-sync', '--locale=C', '--encoding=UTF8'];
    const [command, ...args] = asUser([
      join(folder, 'initdb'),
      ...['-D', join(work, 'data'), '-U', USER, '--wal-segsize=1', ...options],
    ]);
    await execute(command as string, args, { ...run, cwd: work });
    await mkdir(CACHE, { recursive: true });
    const draft = await mkdtemp(join(CACHE, '.postgres-'));
    await copyFolder(join(work, 'data'), join(draft, 'data'));
    // somebody else may be first
    await rename(join(draft, 'data'), template).catch(async (error: unknown) => {
      if (!(await isThere(template))) throw error;
    });
    await rm(draft, { recursive: true, force: true });
  } finally {
    await rm(work, { recursive: true, force: true });
  }
  return template;
}

/** `cp` keeps the owner, where Node's doesn't. */
async function copyFolder(from: string, to: string): Promise<void> {
  await execute('cp', ['-a', from, to]).catch(() => cp(from, to, { recursive: true }));
}

/** A temporary folder of the user that the servers run as. */
export async function ownFolder(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'holdfast-postgres-'));
  if (IS_ROOT) await execute('chown', [`${NOBODY}:${NOBODY}`, dir]);
  return dir;
}

/** `setpriv` becomes the program, so the process that we signal is the one that we mean. */
export function asUser(command: readonly string[]): readonly string[] {
  return IS_ROOT ? ['setpriv', `--reuid=${NOBODY}`, `--regid=${NOBODY}`, '--clear-groups', ...command] : command;
}

async function answers(url: string): Promise<boolean> {
  const client = new Client({ connectionString: url, connectionTimeoutMillis: 1000 });
  client.on('error', () => {});
  try {
    await client.connect();
    return true;
  } catch {
    return false;
  } finally {
    await client.end();
  }
}

/** Of a process that is gone: does nothing. */
function send(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {}
}

/**
 * Kills them when this process is gone, however it ended. A server's processes that run notice that their first one was killed;
 * one that is paused stays for ever.
 */
function guard(pids: readonly number[]): ChildProcess {
  const script = 'read -r word || kill -KILL "$@"';
  const child = spawn('sh', ['-c', script, 'sh', ...pids.map(String)], {
    stdio: ['pipe', 'ignore', 'ignore'],
    // Ctrl+C at a terminal is for the whole group
    detached: true,
  });
  child.unref();
  child.stdin?.on('error', () => {});
  return child;
}

/** A zombie has ended, however long it takes until somebody notices. */
export async function isAnyAlive(pids: readonly number[]): Promise<boolean> {
  const states = await Promise.all(pids.map(stateOf));
  return states.some((state) => state !== undefined && !/[ZX]/.test(state));
}

/** The letter of `ps`; undefined: it is gone. */
async function stateOf(pid: number): Promise<string | undefined> {
  const text = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '');
  return /\) (\w) /.exec(text)?.[1];
}

async function isThere(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}
