export {
  DependencyCheck,
  type DependencyCheckOptions,
  type DependencyReport,
  type DependencyStatus,
} from './dependency-check.js';
export { OpsListener, type OpsListenerOptions } from './listener.js';
export { countDroppedLines, createLogger, type LoggerOptions, type RelayLogger } from './logger.js';
export { createMeter, meterOn, type PrometheusMeter } from './metrics.js';
export { Readiness, type ReadinessOutcome } from './readiness.js';
export { redactText } from './redact.js';
export type { LineSink } from './stdout.js';
