import { constants, fstatSync, openSync, writeSync } from 'node:fs';
import { isatty } from 'node:tty';
import { within } from '../core/sleep.js';

export interface LineSink {
  /** Takes a line that ends with a line feed; never blocks, never throws. */
  write(line: string): void;
  /** Resolves when all lines are out, or after 500 ms. */
  flush(): Promise<void>;
}

export interface StdoutOptions {
  /** Lines kept while nobody reads stdout, in bytes; one line that is under way may exceed it. */
  readonly bufferBytes: number;
  readonly onDropped?: (lines: number) => void;
  /** Applied to lines that are kept. */
  readonly edit?: (line: string) => string;
}

const STDOUT = 1;
const CHUNK_BYTES = 64 * 1024;
/** A pipe takes 64 KiB, so this drains 6 MB/s. Polled, because only a stream of Node could say when there is room. */
const RETRY_MS = 10;
const FLUSH_MS = 500;
/** At exit no loop runs any more: a reader that does read gets this long for the rest. */
const EXIT_MS = 250;
const EXIT_POLL_MS = 5;

/**
 * Lines to stdout that cost a bounded memory and never a blocked event loop, also when stdout is a pipe that nobody
 * reads. What finds no room is dropped and counted. Files and terminals are simply written.
 *
 * Rejected, by experiment on Linux with Node 20 and 24: `process.stdout` is asynchronous for pipes, but buffers without
 * bound; `fs.write` on a blocking pipe holds a thread of the pool, and the process then can't exit at all; pino's own
 * destination sleeps on EAGAIN.
 */
export class Stdout implements LineSink {
  readonly #fd = nonBlocking(STDOUT);
  /** What is being written, then the lines behind it. */
  #chunk = Buffer.alloc(0);
  #lines: Buffer[] = [];
  #lineBytes = 0;
  #retry: NodeJS.Timeout | undefined;
  #drained: { readonly promise: Promise<void>; readonly resolve: () => void } | undefined;

  constructor(private readonly options: StdoutOptions) {
    process.once('exit', () => this.#drainAtExit());
  }

  get bufferedBytes(): number {
    return this.#chunk.length + this.#lineBytes;
  }

  write(line: string): void {
    const isWaiting = this.bufferedBytes > 0;
    if (isWaiting && this.bufferedBytes + Buffer.byteLength(line) > this.options.bufferBytes) {
      this.#drop(1);
      return;
    }
    const bytes = Buffer.from(this.options.edit ? this.options.edit(line) : line);
    this.#lines.push(bytes);
    this.#lineBytes += bytes.length;
    if (!isWaiting) this.#drain();
  }

  async flush(): Promise<void> {
    if (this.bufferedBytes === 0) return;
    this.#drained ??= deferred();
    await within(FLUSH_MS, this.#drained.promise);
  }

  /** Writes until nothing is left or the pipe is full; the timer then goes on, and keeps the process alive for it. */
  #drain(): void {
    clearTimeout(this.#retry);
    this.#retry = undefined;
    if (this.#writeAll()) {
      this.#drained?.resolve();
      this.#drained = undefined;
    } else {
      this.#retry = setTimeout(() => this.#drain(), RETRY_MS);
    }
  }

  /** False when the pipe is full. */
  #writeAll(): boolean {
    while (this.bufferedBytes > 0) {
      if (this.#chunk.length === 0) this.#nextChunk();
      try {
        this.#chunk = this.#chunk.subarray(writeSync(this.#fd, this.#chunk));
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return false;
        // the reader is gone, the disk is full: nothing that the relay should die of
        this.#dropAll();
      }
    }
    return true;
  }

  #nextChunk(): void {
    let count = 0;
    let bytes = 0;
    while (count < this.#lines.length && (count === 0 || bytes + (this.#lines[count] as Buffer).length <= CHUNK_BYTES))
      bytes += (this.#lines[count++] as Buffer).length;
    this.#chunk = Buffer.concat(this.#lines.splice(0, count), bytes);
    this.#lineBytes -= bytes;
  }

  #dropAll(): void {
    let lines = this.#lines.length;
    for (const byte of this.#chunk) if (byte === 10) lines++;
    this.#chunk = Buffer.alloc(0);
    this.#lines = [];
    this.#lineBytes = 0;
    this.#drop(lines);
  }

  #drop(lines: number): void {
    this.options.onDropped?.(lines);
  }

  #drainAtExit(): void {
    const until = performance.now() + EXIT_MS;
    const cell = new Int32Array(new SharedArrayBuffer(4));
    while (!this.#writeAll() && performance.now() < until) Atomics.wait(cell, 0, 0, EXIT_POLL_MS);
  }
}

/**
 * A descriptor for the same file as `fd` whose writes say EAGAIN where they would block.
 *
 * A pipe is opened anew, because O_NONBLOCK belongs to the open file and is shared with whoever inherited it: a child
 * of Node that exits sets ours back to blocking. A socket can't be opened anew; there Node's own stdout sets the flag.
 */
function nonBlocking(fd: number): number {
  try {
    const stat = fstatSync(fd);
    if (stat.isFile() || isatty(fd)) return fd;
    if (stat.isFIFO()) return openSync(`/proc/self/fd/${fd}`, constants.O_WRONLY | constants.O_NONBLOCK);
  } catch {
    // no /proc, no reader, or a pipe that belongs to another user
  }
  void process.stdout;
  return fd;
}

function deferred(): { readonly promise: Promise<void>; readonly resolve: () => void } {
  let resolve = (): void => {};
  const promise = new Promise<void>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}
