import { readFileSync, writeFileSync } from 'node:fs';
import { type Aim, type Contestant, type Figure, isMet, median, type Part, ratio } from './figures.js';

/** What the figures of some parts come together in; it is written as a whole or not at all. */
export interface Table {
  readonly parts: readonly Part[];
  /** Of the evidence, and of the markers in its page. */
  readonly name: string;
  /** Where it is written, from the root of the repository. */
  readonly page: string;
  readonly columns: readonly (readonly [Contestant, string])[];
  /** Of the column of ratios. */
  readonly ratio: string;
}

/** Markdown: one row per figure, medians over the rounds, and our value divided by the peer's beside its aim. */
export function markdown(table: Table, figures: readonly Figure[]): string {
  const columns = table.columns.filter(([side]) => figures.some(({ samples }) => samples[side]));
  const head = ['', ...columns.map(([, title]) => title), table.ratio, 'aim'];
  const rows = figures.map((figure) => [
    `${figure.title}, ${figure.unit}`,
    ...columns.map(([side]) => digits(median(figure.samples[side] ?? []))),
    beside(table, figure),
    aim(figure),
  ]);
  return [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
}

function beside(table: Table, figure: Figure): string {
  const value = ratio(figure);
  if (value === undefined || !Number.isFinite(value) || !figure.peer) return digits(value ?? Number.NaN);
  return `${digits(value)} × ${new Map(table.columns).get(figure.peer)}`;
}

/** Three digits that count. */
function digits(value: number): string {
  if (!Number.isFinite(value)) return '–';
  if (Math.abs(value) >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString('en');
  return value.toFixed(Math.abs(value) >= 10 ? 1 : 2);
}

function aim(figure: Figure): string {
  if (!figure.aim) return '';
  const text = aimText(figure.aim, figure.unit);
  const met = isMet(figure);
  return met === undefined ? text : `${text} ${met ? '✓' : '✗'}`;
}

function aimText(aim: Aim, unit: string): string {
  if ('atMost' in aim) return `≤ ${+aim.atMost.toFixed(3)}`;
  return 'atLeast' in aim ? `≥ ${aim.atLeast}` : `≤ ${aim.limit} ${unit}`;
}

/** Replaces what is between the markers of that name in a page. */
export function writeBetweenMarkers(path: URL, name: string, text: string): void {
  const page = readFileSync(path, 'utf8');
  const [opening, closing] = [`<!-- ${name}:begin -->`, `<!-- ${name}:end -->`];
  const [begin, end] = [page.indexOf(opening), page.indexOf(closing)];
  if (begin < 0 || end < begin) throw new Error(`${path.pathname}: no ${opening} … ${closing}`);
  writeFileSync(path, `${page.slice(0, begin + opening.length)}\n${text}\n${page.slice(end)}`);
}
