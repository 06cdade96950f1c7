import { type Logger as PinoLogger, pino } from 'pino';
import type { Meter } from '../core/ports.js';
import { OPS_METRICS } from './metric-specs.js';
import { redactLine } from './redact.js';
import { type LineSink, Stdout } from './stdout.js';

export interface LoggerOptions {
  /** Least level that is logged: trace, debug, info, warn, error, fatal or silent. */
  readonly level: string;
  /** Lines kept while nobody reads stdout, in bytes; more are dropped. */
  readonly bufferBytes: number;
  /** In every line. */
  readonly base: { readonly pod: string };
  /** Told how many lines were dropped. */
  readonly onDropped?: (lines: number) => void;
  /** Where lines go, already free of secrets; stdout unless given. */
  readonly sink?: LineSink;
}

/** A pino logger whose `flush` is a promise: resolves when all lines are out, or after 500 ms. */
export type RelayLogger = Omit<PinoLogger, 'flush'> & { flush(): Promise<void> };

/**
 * JSON lines on stdout, secrets redacted wherever they stand. A stdout that nobody reads costs `bufferBytes` and then
 * lines, never a blocked event loop. Call `flush` before `process.exit`.
 */
export function createLogger({ level, bufferBytes, base, onDropped, sink }: LoggerOptions): RelayLogger {
  const out = sink
    ? { write: (line: string) => sink.write(redactLine(line)), flush: () => sink.flush() }
    : new Stdout({ bufferBytes, onDropped, edit: redactLine });
  const serializers = { err: pino.stdSerializers.err, error: pino.stdSerializers.err };
  const logger = pino({ level, base, serializers }, { write: (line) => out.write(line) });
  return Object.assign(logger, { flush: () => out.flush() });
}

/** For {@link LoggerOptions.onDropped}: counts dropped lines in `meter`. */
export function countDroppedLines(meter: Meter): (lines: number) => void {
  const counter = meter.counter(OPS_METRICS.logLinesDropped);
  return (lines) => counter.inc({}, lines);
}
