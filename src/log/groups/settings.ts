import type { GroupEntry } from './group-entry.js';

/** What is told of entries that a group will never be handed. */
export interface GroupGap {
  /**
   * `trimmed`: cut from the log before they were handled. `epoch`: the log was lost, or an older copy took its place.
   * `group`: the group was deleted under its members; it goes on from where all was done, so some may come again.
   */
  readonly reason: 'trimmed' | 'epoch' | 'group';
  readonly partition: number;
  /** First and last offset that are missing; absent when it isn't known how many. */
  readonly from?: number;
  readonly to?: number;
}

/** Where a group begins that isn't there yet. A position is what `append` answered; its partition only, the others begin at the oldest. */
export type GroupStart = 'latest' | 'earliest' | { readonly position: string } | Date;

export interface HandlerContext {
  /** Aborts when the handler's time is over: what it does then no longer counts. */
  readonly signal: AbortSignal;
}

export type EntryHandler = (entry: GroupEntry, context: HandlerContext) => unknown;
export type BatchHandler = (entries: readonly GroupEntry[], context: HandlerContext) => unknown;

export interface GroupSettings {
  /** Handlers that run at the same time. Default 16; 1 to 10,000. */
  readonly concurrency: number;
  /** Entries that a handler is given at once, at most. Absent: it gets one, and no list. 1 to 10,000. */
  readonly batch: number | undefined;
  /** After so many deliveries that failed, an entry becomes a dead letter. Default 5; 1 to 1,000. */
  readonly maxDeliveries: number;
  /** Order per key: `'tenant'`, or a function of the entry. Each partition then has one member at a time. Default: none. */
  readonly orderedBy: 'tenant' | ((entry: GroupEntry) => string) | undefined;
  /** A handler that takes longer has failed, in ms. Default 60,000; 0 = it may take as long as it likes. */
  readonly timeoutMs: number;
  /** A member that was silent for so long is dead, and what it held goes to others, in ms. Default 10,000; 500 to 600,000. */
  readonly leaseMs: number;
  /** A failed entry comes again after a random time of up to this, doubled each time, in ms. Default 500. */
  readonly backoffMs: number;
  /** … and never more than this, in ms. Default 20,000. */
  readonly maxBackoffMs: number;
  /** When it stops, handlers that run have so long to end, in ms. Default 10,000. */
  readonly drainMs: number;
  /** Dead letters that a partition keeps; the oldest make room. Default 10,000. */
  readonly maxDeadLetters: number;
}

const DEFAULTS: GroupSettings = {
  concurrency: 16,
  batch: undefined,
  maxDeliveries: 5,
  orderedBy: undefined,
  timeoutMs: 60_000,
  leaseMs: 10_000,
  backoffMs: 500,
  maxBackoffMs: 20_000,
  drainMs: 10_000,
  maxDeadLetters: 10_000,
};

const DAY_MS = 86_400_000;
const LIMITS = {
  concurrency: [1, 10_000],
  batch: [1, 10_000],
  maxDeliveries: [1, 1000],
  timeoutMs: [0, DAY_MS],
  leaseMs: [500, 600_000],
  backoffMs: [0, DAY_MS],
  maxBackoffMs: [0, DAY_MS],
  drainMs: [0, DAY_MS],
  maxDeadLetters: [1, 1_000_000],
} as const satisfies Partial<Record<keyof GroupSettings, readonly [number, number]>>;

/** @throws {TypeError} naming the option, what was given and what is wanted */
export function groupSettings(options: Partial<GroupSettings>): GroupSettings {
  const settings: Record<string, unknown> = { ...DEFAULTS };
  for (const [name, [min, max]] of Object.entries(LIMITS)) {
    const value = options[name as keyof typeof LIMITS];
    if (value === undefined) continue;
    if (!Number.isInteger(value) || value < min || value > max)
      throw new TypeError(`group: ${name}: wants a whole number from ${min} to ${max} (got ${String(value)})`);
    settings[name] = value;
  }
  const { orderedBy } = options;
  if (orderedBy !== undefined && orderedBy !== 'tenant' && typeof orderedBy !== 'function')
    throw new TypeError(`group: orderedBy: wants 'tenant' or a function of the entry (got ${String(orderedBy)})`);
  settings.orderedBy = orderedBy;
  return Object.freeze(settings) as unknown as GroupSettings;
}
