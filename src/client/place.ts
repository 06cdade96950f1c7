import { RelayError } from '../core/errors.js';
import { parsePosition } from '../wire/position.js';
import type { Store } from './stores.js';

const VERSION = 1;
const MAX_ROOMS = 1000;

/** How far the application has got: what a client goes on from after its own restart. */
export interface Place {
  /** Up to here everything of every room was handled, but of those below. */
  readonly position: string | undefined;
  /**
   * Rooms that were subscribed, those of earlier runs first; a text: this one was handled up to there, before or behind
   * `position`. Of more than 1,000 the last are kept.
   */
  readonly rooms: ReadonlyMap<string, string | null>;
}

function formatPlace({ position, rooms }: Place): string {
  const kept = Object.fromEntries([...rooms].slice(-MAX_ROOMS));
  return JSON.stringify({ v: VERSION, position: position ?? null, rooms: kept });
}

/** `undefined` for what no version of this wrote whole. */
export function parsePlace(text: string): Place | undefined {
  let raw: unknown;
  try {
    raw = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (typeof raw !== 'object' || raw === null) return undefined;
  const { v, position, rooms } = raw as Record<string, unknown>;
  const isPlace = (value: unknown): boolean => value === null || parsePosition(value) !== undefined;
  if (v !== VERSION || !isPlace(position) || typeof rooms !== 'object' || rooms === null) return undefined;
  const entries = Object.entries(rooms as Record<string, string | null>);
  if (entries.length > MAX_ROOMS || !entries.every(([, from]) => isPlace(from))) return undefined;
  return { position: (position as string | null) ?? undefined, rooms: new Map(entries) };
}

/** The position that is further on, if both are of one epoch; else `newer`, as positions only leave an epoch forward. */
export function further(newer: string | undefined, other: string | undefined): string | undefined {
  const [a, b] = [parsePosition(newer), parsePosition(other)];
  if (!a || !b) return newer ?? other;
  return a.epoch === b.epoch && a.partition === b.partition && b.offset > a.offset ? other : newer;
}

/**
 * Writes a place to a store: the newest, one write at a time, at most one each `intervalMs`. Nothing before `open`: until what
 * is there was read and is the client's, the place that it would write is an empty one.
 */
export class PlaceKeeper {
  #timer: ReturnType<typeof setTimeout> | undefined;
  #writing: Promise<void> | undefined;
  #isDirty = false;
  #hasFailed = false;
  #state: 'loading' | 'open' | 'closed' = 'loading';

  constructor(
    private readonly store: Store,
    private readonly intervalMs: number,
    private readonly place: () => Place,
    private readonly onError: (error: RelayError) => void,
  ) {}

  /** The last place; `undefined` for a first start, `damaged` (and told) when there is one that can't be read. */
  async load(): Promise<Place | undefined | 'damaged'> {
    let text: string | undefined;
    try {
      text = await this.store.load();
    } catch (cause) {
      this.#tell('the store cannot be read', cause);
      return 'damaged';
    }
    if (text === undefined) return undefined;
    const place = parsePlace(text);
    if (!place) this.onError(new RelayError('position_lost', 'the store holds no place that can be read'));
    return place ?? 'damaged';
  }

  /** What was loaded has been applied. */
  open(): void {
    this.#state = 'open';
    this.#writeLater();
  }

  changed(): void {
    if (this.#state === 'closed') return;
    this.#isDirty = true;
    this.#writeLater();
  }

  /** Resolves when the store holds the present place. A store that is synchronous holds it at once. */
  async flush(): Promise<void> {
    if (this.#state === 'loading') return;
    // which may be of an older place
    if (this.#writing) await this.#writing;
    await (this.#isDirty ? this.#writeNow() : this.#writing);
  }

  /** The last flush. */
  close(): Promise<void> {
    const flushed = this.flush();
    this.#state = 'closed';
    return flushed;
  }

  #writeLater(): void {
    if (this.#state !== 'open' || !this.#isDirty || this.#writing) return;
    this.#timer ??= setTimeout(() => void this.#writeNow(), this.intervalMs);
  }

  #writeNow(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#writing ??= this.#write().finally(() => {
      this.#writing = undefined;
      this.#writeLater();
    });
    return this.#writing;
  }

  async #write(): Promise<void> {
    this.#isDirty = false;
    try {
      await this.store.save(formatPlace(this.place()));
      this.#hasFailed = false;
    } catch (cause) {
      if (!this.#hasFailed) this.#tell('the place cannot be stored', cause);
      this.#hasFailed = true;
    }
  }

  #tell(text: string, cause: unknown): void {
    this.onError(cause instanceof RelayError ? cause : new RelayError('internal', text, { cause }));
  }
}
