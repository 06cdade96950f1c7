import type { Counter, Histogram, Meter } from '../core/ports.js';

const OUTCOMES = [
  'ok',
  'handler_error',
  'no_worker',
  'worker_lost',
  'timeout',
  'cancelled',
  'overloaded',
  'unavailable',
  'conflict',
  'payload_too_large',
  'bad_request',
] as const;

/** What calls and registrations count. No label carries a user, a method or an id. */
export interface RpcMetrics {
  readonly requests: Counter;
  readonly duration: Histogram;
  readonly redelivered: Counter;
  readonly reasserted: Counter;
  readonly late: Counter;
}

export function rpcMetrics(meter: Meter): RpcMetrics {
  return {
    requests: meter.counter({
      name: 'rpc_requests_total',
      help: 'Calls that ended here, by outcome.',
      labels: { outcome: OUTCOMES },
    }),
    duration: meter.histogram({
      name: 'rpc_duration_seconds',
      help: 'From a call to its outcome.',
      buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
    }),
    redelivered: meter.counter({
      name: 'rpc_redelivered_total',
      help: 'Requests sent again because the worker that had them was lost.',
    }),
    reasserted: meter.counter({
      name: 'rpc_reasserted_total',
      help: 'Registrations that were missing in Redis and were written again.',
    }),
    late: meter.counter({
      name: 'rpc_late_answers_total',
      help: 'Answers of workers for which nobody waited any more.',
    }),
  };
}
