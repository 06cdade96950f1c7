import { parseId } from './entry.js';

export type EpochReason = 'new' | 'deleted' | 'meta' | 'behind' | 'forked';

/** One line of a partition's epoch history. */
export interface EpochRecord {
  readonly epoch: string;
  /** Newest entry of the epochs before it that is still there; offset 0: nothing survived. */
  readonly tail: { readonly ms: number; readonly offset: number };
  readonly reason: EpochReason;
  /** Newest entry that is known to be lost; offset 0: not known. */
  readonly lost: { readonly ms: number; readonly offset: number };
}

/** `epoch,tail,reason,lost;…`, newest first; the last record may be cut short and is then left out. */
export function parseHistory(text: string): readonly EpochRecord[] {
  const records: EpochRecord[] = [];
  const complete = text.slice(0, text.lastIndexOf(';') + 1);
  for (const line of complete.split(';')) {
    const [epoch, tail, reason, lost] = line.split(',');
    if (!epoch || !tail || !reason || lost === undefined) continue;
    const at = parseId(tail);
    const gone = lost === '' ? { ms: 0, seq: 0 } : parseId(lost);
    records.push({
      epoch,
      tail: { ms: at.ms, offset: at.seq },
      reason: reason as EpochReason,
      lost: { ms: gone.ms, offset: gone.seq },
    });
  }
  return records;
}

/** The epochs that began after `epoch`, newest first; all that is known when `epoch` is not among them. */
export function epochsSince(history: readonly EpochRecord[], epoch: string): readonly EpochRecord[] {
  const index = history.findIndex((record) => record.epoch === epoch);
  return index < 0 ? history : history.slice(0, index);
}

/** Up to where positions of `epoch` still mean what they meant: the oldest tail that survived since, or no bound. */
export function survivingTail(
  history: readonly EpochRecord[],
  epoch: string,
): { readonly ms: number; readonly offset: number } | undefined {
  if (!history.some((record) => record.epoch === epoch)) return { ms: 0, offset: 0 };
  let oldest: { ms: number; offset: number } | undefined;
  for (const { tail } of epochsSince(history, epoch)) if (!oldest || tail.offset < oldest.offset) oldest = tail;
  return oldest;
}

/** What a reader knew of the epoch that ended. */
interface OldEpoch {
  /** Newest entry that it dispatched. */
  readonly offset: number;
  /** Newest entry that this pod read or had acknowledged. */
  readonly seen: number;
  /** Newest entry that its last heartbeat saw. */
  readonly tail: number;
}

/**
 * Offsets of the old epoch that are gone, both ends included. `survived` is the newest entry that the reader had dispatched
 * and that is still there, 0 = none. After a whole loss it begins at what was dispatched last: that is gone as well.
 */
export function lostOffsets(
  since: readonly EpochRecord[],
  old: OldEpoch,
  survived: number,
): { readonly from: number; readonly to: number } | undefined {
  const branch = Math.min(...since.map(({ tail }) => tail.offset));
  const stands = Math.max(survived, branch);
  // in another branch of the log the same offsets stand for other entries, so its tail says nothing of this one
  const hasForked = since.some(({ reason }) => reason === 'forked');
  const to = Math.max(
    ...since.map(({ lost }) => lost.offset),
    old.offset > survived ? old.offset : 0,
    old.seen > stands ? old.seen : 0,
    old.tail > stands && !hasForked ? old.tail : 0,
  );
  // behind what survived of the dispatched ones the log may hold more, up to where the new epoch branched off
  const from =
    survived === 0 ? Math.min(old.offset, to) : survived < old.offset ? Math.min(survived, branch) + 1 : branch + 1;
  return to > 0 && from <= to ? { from: Math.max(1, from), to } : undefined;
}
