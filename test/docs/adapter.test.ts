import { Redis } from 'ioredis';
import { Registry } from 'prom-client';
import { Server } from 'socket.io';
import { expect, test } from 'vitest';
import { createAdapter } from '../../src/adapter/index.js';
import { settingsOf } from '../../src/adapter/options.js';
import { code, codes, read, table } from './markdown.js';

const PAGE = 'docs/adapter.md';
const source = read('src/adapter/options.ts');
/** Members of `AdapterOptions`, without and with a deprecation. */
const declared = [
  ...(/interface AdapterOptions \{([\s\S]*?)\n\}/.exec(source)?.[1] ?? '').matchAll(
    /(@deprecated[^\n]*\n)?\s+readonly (\w+)\?:/g,
  ),
].map((match) => ({ name: match[2] as string, isObsolete: match[1] !== undefined }));

test('docs/adapter.md lists every option, in the order of the code', () => {
  const documented = table(PAGE, ['option', 'default', 'meaning']).map((row) => code(row.option));
  const current = declared.filter(({ isObsolete }) => !isObsolete);
  expect(current.length).toBeGreaterThan(8);
  expect(documented).toEqual(current.map(({ name }) => name));
});

test('every default is what the option is without it', () => {
  const settings = settingsOf({}) as unknown as Readonly<Record<string, unknown>>;
  for (const row of table(PAGE, ['option', 'default', 'meaning'])) {
    const value = settings[code(row.option)];
    const isPlain = typeof value === 'string' || typeof value === 'number';
    const documented = isPlain ? code(row.default).replaceAll("'", '') : row.default;
    expect([code(row.option), documented]).toEqual([
      code(row.option),
      isPlain ? String(value) : expect.stringMatching(/^(none|stderr)$/),
    ]);
  }
});

test('the options of the streams adapter that are taken without effect are named', () => {
  const obsolete = declared.filter(({ isObsolete }) => isObsolete).map(({ name }) => name);
  const sentence =
    read(PAGE)
      .split('\n')
      .find((line) => line.includes('are taken without effect')) ?? '';
  expect(codes(sentence.slice(0, sentence.indexOf('are taken')))).toEqual(obsolete);
});

test('every metric of a server is documented, with its labels, here or in operations.md', async () => {
  const registry = new Registry();
  const io = new Server({
    adapter: createAdapter(new Redis({ port: 1, lazyConnect: true }), { registry, bridge: 'socket.io' }),
  });
  const exported = await registry.getMetricsAsJSON();
  await io.of('/').adapter.close();
  const here = table(PAGE, ['metric', 'labels', 'meaning']);
  const there = table('docs/operations.md', ['metric', 'type', 'labels', 'meaning']);
  const known = new Set([...here, ...there].map((row) => code(row.metric)));
  expect(exported.map(({ name }) => name).filter((name) => !known.has(name))).toEqual([]);
  const own = exported.filter(({ name }) => name.startsWith('holdfast_adapter_'));
  expect(here.map((row) => code(row.metric)).toSorted()).toEqual(own.map(({ name }) => name).toSorted());
  for (const { name, values } of own) {
    const labels = here.find((row) => code(row.metric) === name)?.labels ?? '';
    const documented = labels.split(';').map((part) => part.trim().replace(/`(\w+)`: /, '$1='));
    const real = new Map<string, Set<unknown>>();
    for (const { labels: of } of values)
      for (const [label, value] of Object.entries(of)) real.set(label, (real.get(label) ?? new Set()).add(value));
    expect([name, documented]).toEqual([name, [...real].map(([label, all]) => `${label}=${[...all].join(', ')}`)]);
  }
});
