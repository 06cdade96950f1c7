import { FatalError, RelayError } from '../core/errors.js';

export type Format = 'text' | 'json';

/** Prints rows as columns, as Kafka's tools do, or as one JSON array. What isn't known is `-`. */
export function printRows(
  rows: readonly Readonly<Record<string, unknown>>[],
  columns: Readonly<Record<string, string>>,
  format: Format,
): void {
  if (format === 'json') {
    process.stdout.write(`${JSON.stringify(rows, null, 2)}\n`);
    return;
  }
  const keys = Object.keys(columns);
  const lines = [Object.values(columns), ...rows.map((row) => keys.map((key) => String(row[key] ?? '-')))];
  const widths = keys.map((_, index) => Math.max(...lines.map((line) => (line[index] as string).length)));
  for (const line of lines) {
    const text = line.map((cell, index) => cell.padEnd(widths[index] as number)).join('  ');
    process.stdout.write(`${text.trimEnd()}\n`);
  }
}

/** One line to stderr and an exit code that scripts can use: 1 = it failed, 2 = it can't be reached. */
export function failWith(error: unknown): never {
  const isOutage = error instanceof RelayError && error.code === 'unavailable';
  const text =
    error instanceof FatalError || error instanceof RelayError
      ? error.message
      : String((error as Error)?.stack ?? error);
  process.stderr.write(`holdfast: ${text}\n`);
  process.exit(isOutage ? 2 : 1);
}

/** For commander: `-o json` or `-o text`. */
export function parseFormat(value: string): Format {
  if (value === 'text' || value === 'json') return value;
  throw new FatalError(`-o: wants text or json, got ${JSON.stringify(value)}`);
}

/** What somebody typed: JSON, or else a text; nothing is null. */
export function parseJson(text: string | undefined): unknown {
  if (text === undefined) return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
