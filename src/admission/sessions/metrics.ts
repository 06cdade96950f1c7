import type { Counter, Histogram, Meter } from '../../core/ports.js';

export interface SessionMetrics {
  readonly decisions: Counter;
  readonly seconds: Histogram;
  readonly evictions: Counter;
  readonly proofs: Counter;
  readonly reasserted: Counter;
  readonly limited: Counter;
}

export function sessionMetrics(meter: Meter): SessionMetrics {
  return {
    decisions: meter.counter({
      name: 'session_decisions_total',
      help: "Connections that wanted their device's session, by what was decided.",
      labels: { decision: ['admit', 'takeover', 'dead', 'local', 'settle', 'loop', 'flap', 'throttle'] },
    }),
    seconds: meter.histogram({
      name: 'session_decision_seconds',
      help: 'How long a decision took, with the proof that the holder lives.',
      buckets: [0.001, 0.005, 0.02, 0.1, 0.5, 1, 2],
    }),
    evictions: meter.counter({
      name: 'session_evictions_total',
      help: 'Connections here that lost their device: to a newcomer, to one that Redis had not heard of, or by request.',
      labels: { cause: ['takeover', 'assertion', 'request'] },
    }),
    proofs: meter.counter({
      name: 'session_proofs_total',
      help: 'Holders that had to prove their life. gone: their process or connection is.',
      labels: { outcome: ['alive', 'silent', 'gone', 'unknown'] },
    }),
    reasserted: meter.counter({
      name: 'session_reasserted_total',
      help: 'Sessions that Redis had lost or not heard of, and that were written again.',
    }),
    limited: meter.counter({
      name: 'session_limited_total',
      help: 'Connections refused before their token was looked at.',
      labels: { limit: ['flap', 'address'] },
    }),
  };
}
