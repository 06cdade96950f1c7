import type { Counter, Meter } from '../core/ports.js';

/** What presence counts. */
export interface PresenceMetrics {
  readonly told: Counter;
  readonly writes: Counter;
  readonly reasserted: Counter;
  readonly overLimit: Counter;
}

export function presenceMetrics(meter: Meter): PresenceMetrics {
  return {
    told: meter.counter({
      name: 'presence_events_total',
      help: 'Devices that came or went by this process, or by one that it buried.',
      labels: { change: ['online', 'offline'] },
    }),
    writes: meter.counter({
      name: 'presence_writes_total',
      help: 'Changes of a user written to Redis; failed ones are tried again.',
      labels: { outcome: ['ok', 'failed'] },
    }),
    reasserted: meter.counter({
      name: 'presence_reasserted_total',
      help: 'Sockets that Redis had lost, or that were taken for dead, and that were written again.',
    }),
    overLimit: meter.counter({
      name: 'presence_over_limit_total',
      help: 'Times that a socket was not listed because its user has too many.',
    }),
  };
}
