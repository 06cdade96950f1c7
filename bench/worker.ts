import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

interface Reply {
  readonly id: number;
  readonly result?: unknown;
  readonly error?: string;
}

interface Asked {
  resolve(result: unknown): void;
  reject(error: Error): void;
}

/** A process of the bench that answers commands (answer.mjs). It ends with us, whatever ends us. */
export class Worker implements AsyncDisposable {
  readonly #process: ChildProcess;
  readonly #asked = new Map<number, Asked>();
  #asks = 0;

  /**
   * @param name for the text of errors
   * @param file beside this one
   */
  constructor(
    readonly name: string,
    file: string,
    args: readonly string[] = [],
    nodeFlags: readonly string[] = [],
  ) {
    this.#process = fork(fileURLToPath(new URL(file, import.meta.url)), [...args], {
      execArgv: [...nodeFlags],
      serialization: 'advanced',
      env: { ...process.env, NODE_ENV: 'production', NODE_OPTIONS: '' },
    });
    this.#process.on('message', (reply) => this.#settle(reply as Reply));
    this.#process.on('exit', (code, signal) => {
      for (const { reject } of this.#asked.values()) reject(new Error(`${name} ended: ${signal ?? code}`));
    });
  }

  get pid(): number {
    return this.#process.pid ?? -1;
  }

  get isRunning(): boolean {
    return this.#process.exitCode === null && this.#process.signalCode === null;
  }

  async ask<Result>(command: string, argument?: unknown): Promise<Result> {
    if (!this.isRunning) throw new Error(`${this.name} has ended; asked to ${command}`);
    const id = ++this.#asks;
    const result = new Promise<unknown>((resolve, reject) => this.#asked.set(id, { resolve, reject }));
    this.#process.send({ id, command, argument });
    return (await result) as Result;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.isRunning) return;
    const gone = once(this.#process, 'exit');
    this.#process.kill('SIGKILL');
    await gone;
  }

  #settle({ id, result, error }: Reply): void {
    const asked = this.#asked.get(id);
    this.#asked.delete(id);
    if (error === undefined) asked?.resolve(result);
    else asked?.reject(new Error(`${this.name}: ${error}`));
  }
}
