import type { Counter, Meter } from '../core/ports.js';

/** What admission counts, beside what the device sessions do. */
export interface AdmissionMetrics {
  readonly checks: Counter;
  readonly closed: Counter;
  readonly fenced: Counter;
}

export function admissionMetrics(meter: Meter): AdmissionMetrics {
  return {
    checks: meter.counter({
      name: 'admission_checks_total',
      help: 'Verdicts on who connects; check_error = Postgres could not say.',
      labels: { outcome: ['active', 'inactive', 'check_error'] },
    }),
    closed: meter.counter({
      name: 'admission_closed_total',
      help: 'Open sockets that were closed by a later verdict, by how it came.',
      labels: { by: ['notice', 'revalidation'] },
    }),
    fenced: meter.counter({
      name: 'admission_writes_refused_total',
      help: 'Publishes refused: their tenant or user is inactive, or Postgres could not say.',
      labels: { reason: ['inactive', 'unknown'] },
    }),
  };
}
