import type { Counter, Meter } from '../core/ports.js';
import { OPS_METRICS } from './metric-specs.js';

export type ReadinessOutcome = 'ready' | 'shutting_down';

/**
 * Whether the load balancer should send new work here: a latch that only this process's own shutdown moves, once. No
 * dependency steers it: a shared database that is slow must not turn every pod NotReady at the same time.
 */
export class Readiness {
  #isDraining = false;
  readonly #checks: Counter;

  constructor(meter: Meter) {
    this.#checks = meter.counter(OPS_METRICS.readinessChecks);
    meter.gauge(OPS_METRICS.ready, () => (this.#isDraining ? 0 : 1));
  }

  get isDraining(): boolean {
    return this.#isDraining;
  }

  /** From now on no probe is answered `ready`. Idempotent; there is no way back. */
  startDraining(): void {
    this.#isDraining = true;
  }

  /** What a probe is told, counted. */
  check(): ReadinessOutcome {
    const outcome = this.#isDraining ? 'shutting_down' : 'ready';
    this.#checks.inc({ outcome });
    return outcome;
  }
}
