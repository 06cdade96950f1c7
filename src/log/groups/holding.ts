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
export class Holding implements Pending {
  /** It has failed as one of a batch: it comes again by itself. */
  isAlone = false;
  /** Its partition, or all that was not at work, was let go meanwhile. */
  isLetGo = false;
  /** Entries with the same one wait for each other. */
  key: string | undefined = undefined;
  state: 'queued' | 'running' | 'waiting' | 'settling' | 'over' = 'queued';

  constructor(
    readonly source: Source,
    readonly id: string,
    readonly ms: number,
    readonly seq: number,
    public deliveries: number,
    public hasFailed: boolean,
    public entry: GroupEntry,
    /** What it takes in memory. */
    readonly bytes: number,
    /** The present delivery is counted. What was taken over is counted when it begins. */
    public isCounted: boolean,
  ) {}
}
