/** How devices' sessions are decided. Times in ms; a limit of 0 is off. */
export interface SessionSettings {
  /** Within that time of its admission a living holder keeps its device. 0 = every newcomer takes it. */
  readonly settleMs: number;
  /** A living holder loses its device to newcomers twice within that time at most. */
  readonly loopMs: number;
  /** Admissions of a device within `flapMs`; refusals of one that isn't paired count too. */
  readonly flapMax: number;
  readonly flapMs: number;
  /** Admissions of a device within `reconnectMs`. */
  readonly reconnectMax: number;
  readonly reconnectMs: number;
  /** In place of `reconnectMax` for `warmupMs` after any process of the cluster has started, drained or died. */
  readonly warmupMax: number;
  readonly warmupMs: number;
  /** Of one address, on all pods together. */
  readonly connectsPerSecond: number;
}

export const DEFAULT_SESSION_SETTINGS: SessionSettings = Object.freeze({
  settleMs: 2500,
  loopMs: 60_000,
  flapMax: 20,
  flapMs: 300_000,
  reconnectMax: 5,
  reconnectMs: 10_000,
  warmupMax: 20,
  warmupMs: 30_000,
  connectsPerSecond: 50,
});

/** A paired device at its flap limit waits that long at most: one that is known is never locked out. */
export const COOL_DOWN_MS = 10_000;
/** Of a session in Redis that nobody keeps any more. */
export const LIFE_MS = 6 * 3_600_000;
