import type { Note } from './member-process.js';
import type { LeaseRecord } from './redis-watch.js';

/** One run of a handler. */
export interface Handling {
  readonly name: string;
  readonly member: string;
  /** `<partition>/<offset>` */
  readonly entry: string;
  readonly deliveries: number;
  readonly begun: Moment;
  /** Absent: its process didn't live to see it. */
  readonly ended: (Moment & { readonly isOk: boolean }) | undefined;
}

/** `line` is its place among all lines of the ledger, and no two are at once. */
interface Moment {
  readonly at: number;
  readonly line: number;
}

export interface AppendedEntry {
  /** `<partition>/<offset>` */
  readonly entry: string;
  readonly key: string;
}

/** All that is known of a group's run from outside of its members. Times are ms since 1970. */
export interface GroupRecord {
  readonly isOrdered: boolean;
  /** In the order of the log, per key. */
  readonly appended: readonly AppendedEntry[];
  readonly notes: readonly Note[];
  /** SIGSTOP to SIGCONT, by the name of the process. */
  readonly pauses: readonly { readonly name: string; readonly from: number; readonly to: number }[];
  /** Member → its leases. */
  readonly leases: ReadonlyMap<string, readonly LeaseRecord[]>;
  /** Entry → when Redis took its acknowledgement. */
  readonly acknowledged: ReadonlyMap<string, number>;
  /** When nobody saw what Redis did. */
  readonly blind: readonly { readonly from: number; readonly to: number }[];
}

export interface Judgement {
  readonly handled: number;
  /** Handlings of entries that had been handled, or begun, before: each with what explains it. */
  readonly again: { readonly failed: number; readonly leaseEnded: number; readonly unseen: number };
  /** Handlers that were begun in the very moment in which their process was paused. */
  readonly caughtByPause: number;
  readonly lost: readonly string[];
  readonly phantoms: readonly string[];
  /** Begun before the one before it with the same key had been handled. */
  readonly outOfOrder: readonly string[];
  /** Begun while another with the same key was at work, whose member had its lease. */
  readonly overlapped: readonly string[];
  /** Handled again though it was acknowledged, or though who had it before lived. */
  readonly unexplained: readonly string[];
  /** The same delivery number twice: nothing tells the two apart. */
  readonly unfenced: readonly string[];
  readonly withoutLease: readonly string[];
}

/** Redis tells µs, and the ledger whole ms. */
const SKEW_MS = 3;
/** After this a member that lives has been seen again. */
const BEAT_MS = 1500;

export function handlingsOf(notes: readonly Note[]): readonly Handling[] {
  const open = new Map<string, number>();
  const handlings: Handling[] = [];
  let at = 0;
  for (const [line, note] of notes.entries()) {
    // a process that was paused as it wrote has an old time
    at = Math.max(at, note.at);
    if (note.what !== 'begin' && note.what !== 'end' && note.what !== 'fail') continue;
    const entry = `${note.partition}/${note.offset}`;
    const own = `${note.member} ${entry} ${note.deliveries}`;
    if (note.what === 'begin') {
      const { name, member, deliveries } = note;
      open.set(own, handlings.push({ name, member, entry, deliveries, begun: { at, line }, ended: undefined }) - 1);
      continue;
    }
    const index = open.get(own);
    if (index === undefined) throw new Error(`line ${line}: ${own} ended without having begun`);
    open.delete(own);
    handlings[index] = { ...(handlings[index] as Handling), ended: { at, line, isOk: note.what === 'end' } };
  }
  return handlings;
}

/** Says what a run of a group did that it must not do. */
export function judge(record: GroupRecord): Judgement {
  const handlings = handlingsOf(record.notes);
  const faults = new Faults(record, handlings);
  const keyOf = new Map(record.appended.map(({ entry, key }) => [entry, key]));
  const ok = new Set<string>();
  for (const { entry, ended } of handlings) if (ended?.isOk) ok.add(entry);
  const lost = record.appended.map(({ entry }) => entry).filter((entry) => !ok.has(entry));
  const phantoms = handlings.filter(({ entry }) => !keyOf.has(entry)).map(textOf);
  for (const all of groupedBy(handlings, ({ entry }) => entry).values()) faults.judgeAgain(all);
  for (const handling of handlings) faults.judgeLease(handling);
  if (record.isOrdered) {
    const entriesOf = groupedBy(record.appended, ({ key }) => key);
    const handlingsOfKey = groupedBy(handlings, ({ entry }) => keyOf.get(entry) ?? '');
    for (const [key, entries] of entriesOf)
      faults.judgeOrder(
        entries.map(({ entry }) => entry),
        handlingsOfKey.get(key) ?? [],
      );
  }
  const { again, caughtByPause, outOfOrder, overlapped, unexplained, unfenced, withoutLease } = faults;
  return {
    handled: ok.size,
    again,
    caughtByPause,
    lost,
    phantoms,
    outOfOrder,
    overlapped,
    unexplained,
    unfenced,
    withoutLease,
  };
}

class Faults {
  readonly again = { failed: 0, leaseEnded: 0, unseen: 0 };
  caughtByPause = 0;
  readonly outOfOrder: string[] = [];
  readonly overlapped: string[] = [];
  readonly unexplained: string[] = [];
  readonly unfenced: string[] = [];
  readonly withoutLease: string[] = [];
  /** Lines that were the first of their process when it went on. */
  readonly #caught: ReadonlySet<number>;

  constructor(
    private readonly record: GroupRecord,
    handlings: readonly Handling[],
  ) {
    this.#caught = firstAfterPause(record.pauses, handlings);
  }

  /** All handlings of one entry. */
  judgeAgain(all: readonly Handling[]): void {
    const acknowledgedAt = this.record.acknowledged.get((all[0] as Handling).entry) ?? Number.POSITIVE_INFINITY;
    const numbers = new Set<number>();
    for (const [index, handling] of all.entries()) {
      if (numbers.has(handling.deliveries)) this.unfenced.push(textOf(handling));
      numbers.add(handling.deliveries);
      const { at, line } = handling.begun;
      // it is counted by `judgeLease`
      if (this.#caught.has(line)) continue;
      if (at > acknowledgedAt + SKEW_MS)
        this.unexplained.push(`${textOf(handling)}, ${at - acknowledgedAt} ms after it was acknowledged`);
      const before = all[index - 1];
      if (!before) continue;
      if (before.ended?.isOk === false) this.again.failed++;
      else if (this.#hasLease(before.member, at) === 'no') this.again.leaseEnded++;
      else if (this.#hasLease(before.member, at) === 'unseen') this.again.unseen++;
      else this.unexplained.push(`${textOf(handling)}, and ${textOf(before)} had its lease`);
    }
  }

  judgeLease(handling: Handling): void {
    const { at, line } = handling.begun;
    if (this.#hasLease(handling.member, at) !== 'no') return;
    if (this.#caught.has(line)) this.caughtByPause++;
    else this.withoutLease.push(textOf(handling));
  }

  /** All entries of one key, in the order of the log, and what was done to them. */
  judgeOrder(entries: readonly string[], handlings: readonly Handling[]): void {
    const doneAt = new Map<string, number>();
    for (const { entry, ended } of handlings)
      if (ended?.isOk) doneAt.set(entry, Math.min(ended.line, doneAt.get(entry) ?? Number.POSITIVE_INFINITY));
    const before = new Map(entries.map((entry, index) => [entry, entries[index - 1]]));
    let open: Handling[] = [];
    for (const handling of handlings) {
      const { at, line } = handling.begun;
      const previous = before.get(handling.entry);
      if (previous !== undefined && (doneAt.get(previous) ?? Number.POSITIVE_INFINITY) > line)
        this.outOfOrder.push(`${textOf(handling)}, before ${previous}`);
      open = open.filter(({ ended }) => !ended || ended.line > line);
      for (const other of open)
        if (this.#hasLease(other.member, at) === 'yes')
          this.overlapped.push(`${textOf(handling)}, in ${textOf(other)}`);
      open.push(handling);
    }
  }

  #hasLease(member: string, at: number): 'yes' | 'no' | 'unseen' {
    if (this.record.blind.some(({ from, to }) => at >= from - SKEW_MS && at <= to + BEAT_MS)) return 'unseen';
    const newest = this.record.leases.get(member)?.findLast((lease) => lease.at <= at + SKEW_MS);
    return newest && newest.until + SKEW_MS >= at ? 'yes' : 'no';
  }
}

/** A process that is paused between its decision to begin and the first thing that it does is seen to begin when it goes on. */
function firstAfterPause(pauses: GroupRecord['pauses'], handlings: readonly Handling[]): ReadonlySet<number> {
  const ofName = groupedBy(handlings, ({ name }) => name);
  const lines = new Set<number>();
  for (const { name, to } of pauses) {
    const moments = (ofName.get(name) ?? []).flatMap(({ begun, ended }) => (ended ? [begun, ended] : [begun]));
    const after = moments.filter(({ at }) => at >= to).map(({ line }) => line);
    if (after.length > 0) lines.add(after.reduce((a, b) => Math.min(a, b)));
  }
  return lines;
}

function groupedBy<T>(all: readonly T[], keyOf: (each: T) => string): ReadonlyMap<string, readonly T[]> {
  const groups = new Map<string, T[]>();
  for (const each of all) {
    const group = groups.get(keyOf(each));
    if (group) group.push(each);
    else groups.set(keyOf(each), [each]);
  }
  return groups;
}

function textOf({ entry, deliveries, member, begun }: Handling): string {
  return `${entry} at delivery ${deliveries} by ${member} (line ${begun.line})`;
}
