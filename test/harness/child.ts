import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { sleep } from '../../src/core/sleep.js';

export interface Exit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

export interface ChildOptions {
  readonly args?: readonly string[];
  readonly env?: NodeJS.ProcessEnv;
  readonly cwd?: string;
}

const MAX_LINES = 5000;

/** Children that still run: a test worker that ends early must not leave them behind. */
const running = new Set<ChildProcess>();
function endAll(): void {
  for (const child of running) child.kill('SIGKILL');
}
process.once('exit', endAll);
// that is how Vitest ends a worker, and what a worker sees of Vitest's own end: neither is an exit
process.once('SIGTERM', endByTerm);
process.once('disconnect', endByTerm);

function endByTerm(): void {
  process.off('SIGTERM', endByTerm);
  endAll();
  process.kill(process.pid, 'SIGTERM');
}

/** One run of a program, its output kept as lines (the newest 5,000). */
export class Child implements AsyncDisposable {
  readonly lines: string[] = [];
  /** Resolves, never rejects; a program that could not be started has code -1. */
  readonly exit: Promise<Exit>;
  readonly #process: ChildProcess;
  #isRunning = true;

  constructor(command: string, { args = [], env = process.env, cwd }: ChildOptions = {}) {
    this.#process = spawn(command, [...args], { env, cwd, stdio: ['ignore', 'pipe', 'pipe'] });
    running.add(this.#process);
    for (const stream of [this.#process.stdout, this.#process.stderr])
      if (stream) createInterface({ input: stream }).on('line', (line) => this.#keep(line));
    this.exit = this.#watch(this.#process);
  }

  get pid(): number {
    return this.#process.pid ?? -1;
  }

  get isRunning(): boolean {
    return this.#isRunning;
  }

  /** Of a process that is gone: does nothing. */
  signal(signal: NodeJS.Signals): void {
    if (this.#isRunning) this.#process.kill(signal);
  }

  /** SIGKILL, which also ends a paused process. */
  async kill(): Promise<Exit> {
    this.signal('SIGKILL');
    return this.exit;
  }

  /** The last lines of output, for an error's text. */
  tail(count = 15): string {
    return this.lines.slice(-count).join('\n');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }

  #keep(line: string): void {
    if (this.lines.push(line) > MAX_LINES) this.lines.shift();
  }

  async #watch(child: ChildProcess): Promise<Exit> {
    const closed = new Promise<void>((resolve) => child.once('close', () => resolve()));
    const exit = await new Promise<Exit>((resolve) => {
      child.once('exit', (code, signal) => resolve({ code, signal }));
      child.once('error', (error) => {
        this.#keep(error.message);
        if (child.pid === undefined) resolve({ code: -1, signal: null });
      });
    });
    this.#isRunning = false;
    running.delete(child);
    // the last lines come before 'close', which a grandchild that inherited the pipes may hold up
    if (child.pid !== undefined) await Promise.race([closed, sleep(500)]);
    return exit;
  }
}
