import {
  type BatchHandler,
  type EntryHandler,
  type GroupGap,
  GroupMember,
  type GroupMemberOptions,
  type GroupSettings,
  type GroupStart,
  groupSettings,
} from '../log/index.js';
import { HeldEntries, type HeldEntry } from './held-entries.js';

export type { HeldEntry } from './held-entries.js';

export interface GroupOptions {
  /** Where the group begins if it isn't there yet. Default `latest`. */
  readonly from?: GroupStart;
}

export interface RunOptions extends Partial<Omit<GroupSettings, 'batch'>> {
  /** Ends the member, as `stop` does. */
  readonly signal?: AbortSignal;
  /** Told of entries that the group will never be handed. Default: only the log says so. */
  readonly onGap?: (gap: GroupGap) => void;
}

export type EntriesOptions = Omit<RunOptions, 'concurrency' | 'orderedBy'>;

/** A member that runs. */
export interface GroupReader extends AsyncDisposable {
  /** Of this member, as `holdfast groups describe --members` shows it. */
  readonly id: string;
  /** Resolves when it takes part; waits for Redis as long as it takes. Rejects when it can't, or is stopped before. */
  readonly ready: Promise<void>;
  /** Resolves when it has stopped. Rejects when it could not take part. */
  readonly ended: Promise<void>;
  readonly isPaused: boolean;
  /** Handlers that run go on; nothing new is begun, and what was read and not begun goes to others. */
  pause(): void;
  resume(): void;
  /** Waits for handlers that run, for `drainMs` at most, and gives the rest to the others. Idempotent. */
  stop(): Promise<void>;
}

/** A consumer group of back ends: each entry of the topic goes to one of its members, at least once. */
export class Group {
  readonly #start: GroupStart;
  readonly #shared: Omit<GroupMemberOptions, 'group' | 'start' | 'settings' | 'handler' | 'onGap'>;
  readonly #running = new Set<GroupReader>();
  #isClosed = false;

  /** Made by {@link Log.group}. */
  constructor(
    readonly name: string,
    { from = 'latest' }: GroupOptions,
    shared: Omit<GroupMemberOptions, 'group' | 'start' | 'settings' | 'handler' | 'onGap'>,
  ) {
    checkStart(from);
    this.#start = from;
    this.#shared = shared;
  }

  /**
   * Joins the group. An entry is acknowledged when its handler has returned, or what it returned has resolved; one that threw, or
   * took too long, comes again.
   *
   * @throws {TypeError} naming the option that is wrong
   */
  run(handler: BatchHandler, options: RunOptions & { readonly batch: number }): GroupReader;
  run(handler: EntryHandler, options?: RunOptions): GroupReader;
  run(handler: EntryHandler | BatchHandler, options: RunOptions & { readonly batch?: number } = {}): GroupReader {
    if (typeof handler !== 'function') throw new TypeError('run: wants a function of the entry');
    if (this.#isClosed) throw new TypeError('run: the log is closed');
    const { signal, onGap = () => {} } = options;
    const settings = groupSettings(options);
    const member = new GroupMember({ ...this.#shared, group: this.name, start: this.#start, settings, handler, onGap });
    const reader = new RunningMember(member, signal, () => this.#running.delete(reader));
    this.#running.add(reader);
    return reader;
  }

  /**
   * The entries one after another, for `for await`. One is acknowledged when the next is asked for; leaving the loop gives back the
   * one in hand, unless it was acknowledged by its `ack()`.
   *
   * @throws {TypeError} naming the option that is wrong
   */
  entries(options: EntriesOptions = {}): AsyncIterableIterator<HeldEntry> {
    return new HeldEntries((handler) => this.run(handler, { timeoutMs: 0, ...options, concurrency: 1 }));
  }

  /** Members of it that run here are stopped. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all([...this.#running].map((reader) => reader.stop()));
  }
}

class RunningMember implements GroupReader {
  readonly ready: Promise<void>;
  readonly ended: Promise<void>;
  readonly #member: GroupMember;
  readonly #stopped = new AbortController();
  #stopping: Promise<void> | undefined;

  constructor(member: GroupMember, signal: AbortSignal | undefined, onEnd: () => void) {
    this.#member = member;
    this.ready = member.start();
    this.ended = this.#end(onEnd);
    // whoever waits for them hears it; the member has said it
    this.ready.catch(() => {});
    this.ended.catch(() => {});
    const onAbort = (): void => void this.stop();
    if (signal?.aborted) onAbort();
    else signal?.addEventListener('abort', onAbort, { signal: this.#stopped.signal });
  }

  async #end(onEnd: () => void): Promise<void> {
    const stopped = new Promise((resolve) => this.#stopped.signal.addEventListener('abort', resolve));
    try {
      await this.ready;
      await stopped;
    } catch (error) {
      // stopped before it took part: no failure
      if (!this.#stopping) throw error;
      await this.stop();
    } finally {
      onEnd();
    }
  }

  get id(): string {
    return this.#member.id;
  }

  get isPaused(): boolean {
    return this.#member.isPaused;
  }

  pause(): void {
    this.#member.pause();
  }

  resume(): void {
    this.#member.resume();
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#member.stop().finally(() => this.#stopped.abort());
    return this.#stopping;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

/** @throws {TypeError} */
function checkStart(from: unknown): void {
  if (from === 'latest' || from === 'earliest') return;
  if (from instanceof Date && !Number.isNaN(from.getTime())) return;
  if (typeof from === 'object' && from !== null && typeof (from as { position?: unknown }).position === 'string')
    return;
  throw new TypeError(`group: from: wants 'latest', 'earliest', a Date or { position } (got ${String(from)})`);
}
