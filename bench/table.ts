import { readFileSync, writeFileSync } from 'node:fs';
import { type Aim, type Figure, isMet, median, ratio } from './figures.js';
import type { SideName } from './side.js';

const COLUMNS: readonly (readonly [SideName, string])[] = [
  ['holdfast', 'Holdfast'],
  ['streams', 'streams adapter'],
  ['pubsub', 'Pub/Sub adapter'],
  ['relay', 'Holdfast relay'],
  ['floor', 'floor'],
];
const BEGIN = '<!-- bench:begin -->';
const END = '<!-- bench:end -->';

/** Markdown: one row per figure, medians over the rounds, and our value divided by the streams adapter's beside its aim. */
export function table(figures: readonly Figure[]): string {
  const columns = COLUMNS.filter(([side]) => figures.some(({ samples }) => samples[side]));
  const head = ['', ...columns.map(([, title]) => title), 'Holdfast / streams', 'aim'];
  const rows = figures.map((figure) => [
    `${figure.title}, ${figure.unit}`,
    ...columns.map(([side]) => digits(median(figure.samples[side] ?? []))),
    digits(ratio(figure) ?? Number.NaN),
    aim(figure),
  ]);
  return [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
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
  if ('atMost' in aim) return `≤ ${aim.atMost}`;
  return 'atLeast' in aim ? `≥ ${aim.atLeast}` : `≤ ${aim.limit} ${unit}`;
}

/** Replaces what is between the markers of a page. */
export function writeBetweenMarkers(path: URL, text: string): void {
  const page = readFileSync(path, 'utf8');
  const [begin, end] = [page.indexOf(BEGIN), page.indexOf(END)];
  if (begin < 0 || end < begin) throw new Error(`${path.pathname}: no ${BEGIN} … ${END}`);
  writeFileSync(path, `${page.slice(0, begin + BEGIN.length)}\n${text}\n${page.slice(end)}`);
}
