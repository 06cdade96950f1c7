/**
 * Where a pod stands, as the hash `offsets` keeps it by the pod's name:
 *
 *     <ms>-<offset> <offset> <epoch> <process id> <committed at, Redis ms>
 *
 * The id is that of the pod's own newest dispatched entry. The process id is `-` where a trim wrote the record for a group that
 * had not committed yet; the id is then the group's, and its sequence may be a stranger's. `sync.lua` writes and answers it
 * (without the last two), `trim.lua` writes and reads it.
 */
export interface SavedPosition {
  readonly id: string;
  readonly ms: number;
  readonly offset: number;
  readonly epoch: string;
  /** Absent in what a heartbeat answers. */
  readonly holder: { readonly processId: string; readonly committedAt: number } | undefined;
}

const SHAPE = /^(?<id>(?<ms>\d+)-\d+) (?<offset>\d+) (?<epoch>\S+)(?: (?<processId>\S+) (?<committedAt>\d+))?$/;

/** `undefined`: malformed. */
export function parseSavedPosition(text: string): SavedPosition | undefined {
  const match = SHAPE.exec(text);
  if (!match) return undefined;
  const { id, ms, offset, epoch, processId, committedAt } = match.groups as Record<string, string>;
  return {
    id,
    ms: Number(ms),
    offset: Number(offset),
    epoch,
    holder: processId === undefined ? undefined : { processId, committedAt: Number(committedAt) },
  } as SavedPosition;
}

/** What a heartbeat commits; the rest of the record is added by the script. */
export function formatSavedPosition(ms: number, offset: number): string {
  return `${ms}-${offset} ${offset}`;
}
