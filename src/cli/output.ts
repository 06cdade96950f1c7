import { FatalError, RelayError } from '../core/errors.js';

export type Format = 'text' | 'json';

const AGES: readonly (readonly [unit: string, ms: number])[] = [
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['m', 60_000],
  ['s', 1000],
];

/** Prints rows as columns, as Kafka's tools do, or as one JSON array. What isn't known is `-`. */
export function printRows(rows: readonly object[], columns: Readonly<Record<string, string>>, format: Format): void {
  if (format === 'json') {
    process.stdout.write(`${JSON.stringify(rows, null, 2)}\n`);
    return;
  }
  const keys = Object.keys(columns);
  const lines = [
    Object.values(columns),
    ...rows.map((row) => keys.map((key) => cellOf((row as Readonly<Record<string, unknown>>)[key]))),
  ];
  const widths = keys.map((_, index) => Math.max(...lines.map((line) => (line[index] as string).length)));
  for (const line of lines) {
    const text = line.map((cell, index) => cell.padEnd(widths[index] as number)).join('  ');
    process.stdout.write(`${text.trimEnd()}\n`);
  }
}

function cellOf(value: unknown): string {
  return value === undefined || value === null || (Array.isArray(value) && value.length === 0) ? '-' : String(value);
}

/** `250ms`, `12s`, `5m`, `3h`, `2d`: as people say how long ago something was. */
export function ageText(ms: number): string {
  const [unit = 'ms', size = 1] = AGES.find(([, size]) => ms >= size) ?? [];
  return `${Math.floor(ms / size)}${unit}`;
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
