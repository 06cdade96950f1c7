import type { EpochReason } from '../../src/log/epochs.js';
import type { Stage, StageOptions } from './stage.js';

export interface Scenario {
  readonly name: string;
  /** How long the fault stays: in the short form, and in the full one. Default 0: it happens and is over. */
  readonly lastsMs?: { readonly short: number; readonly long: number };
  /** Events per second of all publishers; default 40. */
  readonly perSecond?: number;
  /** Fails when the fault did not take effect: the scenario would show nothing. */
  readonly inject: (stage: Stage, form: 'short' | 'long') => Promise<void>;
  readonly heal?: (stage: Stage) => Promise<void>;
  readonly expects: Expectations;
}

export interface Expectations {
  /** Why a new epoch may begin: then each client is told one gap and each pod counts it. Default: no gap anywhere. */
  readonly epoch?: readonly EpochReason[];
  /**
   * Of publishers' first tries. `nothing`: all are accepted. `unavailable`: some are refused, and certainly not written.
   * `mayHaveHappened`: of some nobody knows. `refusals`: some are refused in either way.
   */
  readonly hears: 'nothing' | 'unavailable' | 'mayHaveHappened' | 'refusals' | 'anything';
  /** What was accepted is gone before some client got it. `unknown`: and nobody can say how much. */
  readonly losesUnread?: 'counted' | 'unknown';
  /** A pod is killed, and its clients come back. Default: no client loses its connection. */
  readonly disconnects?: boolean;
  /** What else the operator sees at each pod. */
  readonly counts?: (rise: (series: string) => number) => void;
}

/** Scenarios that follow one another on one stage. */
export interface Group {
  readonly name: string;
  readonly stage?: StageOptions;
  readonly scenarios: readonly Scenario[];
}
