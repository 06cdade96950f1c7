import type { GroupEntry } from './group-entry.js';
import type { Source } from './source.js';

/** An entry that Redis has pending to this member. */
export interface Pending {
  readonly source: Source;
  /** Of the source's stream: the log's, or that of what was redriven. */
  readonly id: string;
  readonly ms: number;
  readonly seq: number;
  /** Deliveries that Redis has counted. */
  deliveries: number;
  /** It failed before, so what is kept of that goes with its acknowledgement. */
  hasFailed: boolean;
}

/** One that a handler gets. */
export interface Holding extends Pending {
  entry: GroupEntry;
  /** What it takes in memory. */
  readonly bytes: number;
  /** The present delivery is counted. What was taken over is counted when it begins. */
  isCounted: boolean;
  /** It has failed as one of a batch: it comes again by itself. */
  isAlone: boolean;
  /** Entries with the same one wait for each other. */
  key: string | undefined;
  state: 'queued' | 'running' | 'waiting' | 'settling' | 'over';
}
