import { expect, test } from 'vitest';
import { code, filesIn, read, table } from './markdown.js';

/** `logger.warn({ event: 'redis_down', …`, over any number of lines. */
const LOGGED = /logger\.(\w+)\(\s*\{\s*event: '([a-z_]+)'/g;

test('docs/operations.md lists every event of the log, with its level', () => {
  const rows = table('docs/operations.md', ['event', 'level', 'meaning']);
  const documented = new Set(rows.map((row) => `${code(row.event)} ${row.level}`));
  const logged = filesIn('src', '.ts').flatMap((path) => [...read(path).matchAll(LOGGED)]);
  const real = new Set(logged.map((match) => `${match[2]} ${match[1]}`));
  expect([...documented].sort()).toEqual([...real].sort());
});

test('no event of the log escapes the search above', () => {
  const texts = filesIn('src', '.ts').map(read).join('\n');
  const searched = [...texts.matchAll(LOGGED)].length;
  expect([...texts.matchAll(/\{\s*event: '[a-z_]+'/g)]).toHaveLength(searched);
});
