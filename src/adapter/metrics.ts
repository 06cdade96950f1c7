import type { Counter, Meter } from '../core/ports.js';

/** What the adapter counts beside the gateway. */
export interface AdapterMetrics {
  readonly unlogged: Counter;
  readonly requests: Counter;
}

export function adapterMetrics(meter: Meter): AdapterMetrics {
  return {
    unlogged: meter.counter({
      name: 'adapter_unlogged_total',
      help: 'Broadcasts that the log did not take: given to local sockets only, dropped, or of unknown outcome.',
      labels: { outcome: ['local', 'dropped', 'unknown'] },
    }),
    requests: meter.counter({
      name: 'adapter_requests_total',
      help: 'Questions to other servers.',
      labels: { outcome: ['answered', 'timeout', 'unavailable'] },
    }),
  };
}
