import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { eventually } from './poll.js';

/** What a daemon promises of a request that comes again: nothing, to be the same process, or to remember over restarts. */
export type DaemonKind = 'raw' | 'instance' | 'durable';

export interface DaemonSettings {
  readonly url: string;
  /** One socket each. */
  readonly users: readonly { readonly token: string; readonly methods: readonly string[] }[];
  readonly kind: DaemonKind;
  /** Of a call whose `params.ms` doesn't say it. */
  readonly handlerMs: number;
  /** Each execution appends `key attempt pid id at` before it begins. */
  readonly file: string;
  /** `once`: at the first connect only, as a client that trusts in its recovery. */
  readonly registers: 'always' | 'unless-recovered' | 'once';
  readonly reconnectionDelayMs: number;
}

/** What a daemon's process told of itself. `daemon` is the index in `users`. */
export interface DaemonNote {
  readonly note: 'connect' | 'disconnect' | 'registered' | 'unregistered' | 'cancelled';
  readonly daemon: number;
  /** ms since 1970, by the daemon. */
  readonly at: number;
  readonly method?: string;
  readonly reason?: string;
  readonly recovered?: boolean;
  /** Codes of the registrations that were refused. */
  readonly failed?: readonly string[];
}

export interface Registration {
  /** Default: of the newest run. */
  readonly since?: number;
  readonly only?: number;
  readonly withinMs?: number;
}

type Command = 'drop' | 'disconnect' | 'connect' | 'register' | 'unregister' | 'stayAway';

const PROGRAM = fileURLToPath(new URL('rpc-daemon.mjs', import.meta.url));

const running = new Set<ChildProcess>();
process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL');
});

/** A process with one or many daemons in it, which can be killed, paused and started again. */
export class RpcDaemon implements AsyncDisposable {
  /** Of all runs. */
  readonly notes: DaemonNote[] = [];
  readonly errors: string[] = [];
  #process: ChildProcess;
  #startedAt = 0;

  constructor(readonly settings: DaemonSettings) {
    this.#process = this.#spawn();
  }

  get pid(): number {
    return this.#process.pid ?? -1;
  }

  notesOf(note: DaemonNote['note'], since = 0): DaemonNote[] {
    return this.notes.filter((each) => each.note === note && each.at >= since);
  }

  /** Resolves with the time at which all of its sockets had registered, at or after `since`; or the one of that index. */
  async registered({ since = this.#startedAt, only, withinMs = 20_000 }: Registration = {}): Promise<number> {
    const wanted = only === undefined ? this.settings.users.map((_, index) => index) : [only];
    const found = new Map<number, DaemonNote>();
    await eventually(
      () => {
        for (const note of this.notesOf('registered', since)) if (!found.has(note.daemon)) found.set(note.daemon, note);
        if (this.errors.length > 0) throw new Error(this.errors.slice(-5).join('\n'));
        return wanted.every((index) => found.has(index));
      },
      { withinMs, what: 'a daemon to have registered' },
    );
    const registrations = wanted.map((index) => found.get(index) as DaemonNote);
    const failed = registrations.flatMap((note) => note.failed ?? []);
    if (failed.length > 0) throw new Error(`${failed.length} registrations failed, such as ${failed[0]}`);
    return Math.max(...registrations.map(({ at }) => at));
  }

  /** `drop` closes the transport, `stayAway` for good; `disconnect` leaves in the protocol's way. */
  tell(command: Command, rest: { readonly daemon?: number; readonly method?: string } = {}): void {
    this.#process.stdin?.write(`${JSON.stringify({ command, ...rest })}\n`);
  }

  pause(): void {
    this.#process.kill('SIGSTOP');
  }

  resume(): void {
    this.#process.kill('SIGCONT');
  }

  /** SIGKILL */
  async kill(): Promise<void> {
    if (!running.has(this.#process)) return;
    const exit = once(this.#process, 'exit');
    this.#process.kill('SIGKILL');
    await exit;
  }

  /** Another process with the same settings, after a kill. */
  start(): void {
    this.#process = this.#spawn();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.kill();
  }

  #spawn(): ChildProcess {
    this.#startedAt = Date.now();
    const child = spawn(process.execPath, [PROGRAM], { stdio: ['pipe', 'pipe', 'pipe'] });
    running.add(child);
    child.once('exit', () => running.delete(child));
    child.stdin.on('error', () => {}); // killed before it had read all
    child.stdin.write(`${JSON.stringify(this.settings)}\n`);
    createInterface({ input: child.stdout }).on('line', (line) => this.notes.push(JSON.parse(line) as DaemonNote));
    createInterface({ input: child.stderr }).on('line', (line) => this.errors.push(line));
    return child;
  }
}
