/** How calls behave. Times in ms, sizes in bytes of JSON. */
export interface RpcSettings {
  /** A worker whose transport or pod died may come back for that long; calls wait for it. */
  readonly graceMs: number;
  /** A call of a method that nobody has registered waits that long for a first worker. */
  readonly absentGraceMs: number;
  /** Calls of one method that wait to be picked up; more are `overloaded`. */
  readonly maxQueued: number;
  /** Requests that one daemon has in work; more wait. */
  readonly inFlight: number;
  /** Of params and of a result, each. */
  readonly maxPayloadBytes: number;
}

export const DEFAULT_SETTINGS: RpcSettings = Object.freeze({
  graceMs: 8000,
  absentGraceMs: 0,
  maxQueued: 1000,
  inFlight: 64,
  maxPayloadBytes: 1_000_000,
});

export const DEFAULT_TIMEOUT_MS = 30_000;
/** Of a call, and of its wait for a worker. */
export const MAX_TIMEOUT_MS = 600_000;
/** Whoever calls is told `unavailable` before that, and nothing that Redis takes later begins. */
export const BUDGET_MS = 1900;
/** A worker's answer may take that long beyond the deadline before it is given up. */
export const MARGIN_MS = 300;
/** A result, and who had a call, are known for that long after the deadline. */
export const KEEP_MS = 60_000;
/** How often a request is given to workers that died over it. */
export const MAX_ATTEMPTS = 5;
