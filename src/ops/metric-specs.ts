import type { CounterSpec, GaugeSpec } from '../core/ports.js';

/** What the private listener and the process count, by name. Dependency checks need their list: `dependency-check.ts`. */
export const OPS_METRICS = {
  ready: { name: 'ready', help: '1 while the pod takes new work, 0 for ever once it drains' },
  readinessChecks: {
    name: 'readiness_checks_total',
    help: 'Answers of the readiness probe',
    labels: { outcome: ['ready', 'shutting_down'] },
  },
  logLinesDropped: {
    name: 'log_lines_dropped_total',
    help: 'Log lines dropped because nobody read stdout and the buffer was full',
  },
  eventLoopDelay: {
    name: 'event_loop_delay_seconds',
    help: 'How late the event loop ran its timers since the last scrape',
    // not `quantile`, which is a summary's own
    labels: { stat: ['p50', 'p99', 'max'] },
  },
} as const satisfies Record<string, CounterSpec | GaugeSpec>;
