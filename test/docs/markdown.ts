import { readdirSync, readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/** Text of a file, its path from the repository's root. */
export const read = (path: string): string => readFileSync(join(ROOT, path), 'utf8');

/** Files below `folder` whose name ends in `ending`, by their paths from the repository's root. */
export function filesIn(folder: string, ending: string): string[] {
  return readdirSync(join(ROOT, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith(ending))
    .map((entry) => relative(ROOT, join(entry.parentPath, entry.name)))
    .sort();
}

export type Row = Readonly<Record<string, string>>;

/**
 * The rows of the one table of `path` that has exactly these columns, by column.
 * @throws {Error} when there is none, or more than one
 */
export function table(path: string, columns: readonly string[]): Row[] {
  const lines = read(path).split('\n');
  const header = `| ${columns.join(' | ')} |`;
  const starts = lines.flatMap((line, index) => (line === header ? [index] : []));
  if (starts.length !== 1) throw new Error(`${path}: ${starts.length} tables with the columns ${columns.join(', ')}`);
  const body = lines.slice((starts[0] as number) + 2);
  const end = body.findIndex((line) => !line.startsWith('|'));
  return body.slice(0, end < 0 ? undefined : end).map((line) => {
    const cells = line.slice(1, -1).split('|');
    if (cells.length !== columns.length) throw new Error(`${path}: ${cells.length} cells in the row ${line}`);
    return Object.fromEntries(columns.map((column, index) => [column, (cells[index] as string).trim()]));
  });
}

/** Everything in `backticks`, in order. */
export function codes(text: string): string[] {
  return [...text.matchAll(/`([^`]+)`/g)].map((match) => match[1] as string);
}

/** The first text in `backticks`. */
export const code = (text: string | undefined): string => codes(text ?? '')[0] ?? '';

/** The first code block behind `marker`. */
export function block(path: string, marker: string): string {
  const text = read(path);
  const at = text.indexOf(marker);
  const found = at < 0 ? null : /```\w*\n([\s\S]*?)```/.exec(text.slice(at));
  if (!found) throw new Error(`${path}: no code block behind ${marker}`);
  return found[1] as string;
}
