import { within } from '../core/sleep.js';
import type { GatewayMetrics } from './metrics.js';
import { RECORD_LIFE_MS, type ResumeRecords } from './resume-records.js';
import type { Subscriber } from './subscriber.js';

/** A connect waits so long for its record to be stored. */
const SAVE_MS = 500;

export interface ResumableContext<State> {
  readonly records: ResumeRecords<State>;
  readonly metrics: GatewayMetrics;
  readonly recoveryWindowMs: number;
}

/** The part of a record that says where its client stands. */
export interface ResumePlace {
  /** Socket id. */
  readonly sid: string;
  readonly epoch: string;
  readonly partition: number;
  /** Where the client stood when it connected; one that heard of no position since goes on here. */
  readonly ms: number;
  readonly offset: number;
  /** Epoch of the joins' offsets: a later one, if the log began a new epoch since the client connected. */
  readonly roomsEpoch: string;
}

/** A connection that its client may resume, here or elsewhere: it keeps its record in Redis up to date, as long as it is ours. */
export abstract class Resumable<State> {
  /** Another pod, or another connection of this one, has taken the record over: it is no longer ours to touch. */
  isSuperseded = false;
  /** The record doesn't hold what it should: the sweep saves it. */
  isDirty = false;
  #savedAt = 0;
  #saving: Promise<boolean> | undefined;
  #mustSaveAgain = false;
  #hasEnded = false;
  /** Where it stood when it connected, whatever became of its epoch. */
  readonly #start: { readonly epoch: string; readonly ms: number; readonly offset: number };

  constructor(
    readonly subscriber: Subscriber,
    /** Names the record; the client brings it when it returns. */
    public pid: string,
    readonly owner: string,
    private readonly resumable: ResumableContext<State>,
  ) {
    const { epoch, ms, offset } = subscriber;
    this.#start = { epoch, ms, offset };
  }

  protected placeOf({ id }: { readonly id: string }): ResumePlace {
    const { partition, epoch: roomsEpoch } = this.subscriber;
    return { sid: id, partition, ...this.#start, roomsEpoch };
  }

  /** What a client needs to go on elsewhere. */
  abstract state(): State;
  /** Ends the connection, whose client goes on elsewhere. */
  protected abstract onSuperseded(): void;

  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /** The record would be taken for garbage, or no longer says what it should. */
  get isStale(): boolean {
    return this.isDirty || performance.now() - this.#savedAt > RECORD_LIFE_MS / 2;
  }

  /** True once Redis holds the present state. False: it doesn't, within the time that a client waits. */
  async save(withinMs = SAVE_MS): Promise<boolean> {
    if (this.isSuperseded || this.#hasEnded) return false;
    this.isDirty = true;
    this.#mustSaveAgain = true;
    this.#saving ??= this.#saveUntilCurrent();
    return (await within(withinMs, this.#saving)) ?? false;
  }

  async #saveUntilCurrent(): Promise<boolean> {
    const { records, metrics } = this.resumable;
    try {
      do {
        this.#mustSaveAgain = false;
        if ((await records.save(this.pid, this.owner, this.state())) === 'lost') {
          metrics.records.inc({ outcome: 'lost' });
          this.supersede();
          return false;
        }
      } while (this.#mustSaveAgain && !this.#hasEnded);
      this.isDirty = false;
      this.#savedAt = performance.now();
      metrics.records.inc({ outcome: 'saved' });
      return true;
    } catch {
      metrics.records.inc({ outcome: 'failed' });
      return false;
    } finally {
      this.#saving = undefined;
    }
  }

  /** The record is another connection's from now on. */
  supersede(): void {
    if (this.isSuperseded) return;
    this.isSuperseded = true;
    this.onSuperseded();
  }

  /** The connection is gone, and nothing is saved after this. `isFinal`: its client left on purpose and won't resume. */
  async release(isFinal: boolean): Promise<void> {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    const { records, recoveryWindowMs } = this.resumable;
    const state = this.state();
    if (this.isSuperseded) return;
    if (isFinal || recoveryWindowMs === 0) await records.drop(this.pid, this.owner).catch(() => {});
    else await records.save(this.pid, this.owner, state, recoveryWindowMs).catch(() => 'lost');
  }
}
