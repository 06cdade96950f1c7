import type { Counter, Meter } from '../core/ports.js';

/** What the adapter counts beside the gateway. */
export interface AdapterMetrics {
  readonly unlogged: Counter;
  readonly requests: Counter;
  readonly bridged: Counter;
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
    bridged: meter.counter({
      name: 'adapter_bridged_total',
      help: 'Entries between the log and the stream of old servers: carried, skipped as none that others need, failed.',
      labels: { direction: ['in', 'out'], outcome: ['carried', 'skipped', 'failed'] },
    }),
  };
}
