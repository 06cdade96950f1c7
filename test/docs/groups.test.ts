import { Registry } from 'prom-client';
import { expect, test } from 'vitest';
import { createLog } from '../../src/backend-log/index.js';
import { groupSettings } from '../../src/log/index.js';
import { code, codes, read, table } from './markdown.js';

const PAGE = 'docs/groups.md';

/** Names of an interface's fields. */
function fieldsOf(path: string, name: string): string[] {
  const [, own = ''] = new RegExp(`interface ${name}[^{]*\\{([\\s\\S]*?)\\n\\}`).exec(read(path)) ?? [];
  return [...own.matchAll(/readonly (\w+)\??:/g)].map((match) => match[1] as string);
}

test('docs/groups.md lists the options of createLog and of append', () => {
  const log = table(PAGE, ['option', 'default', 'meaning']);
  expect(log.flatMap((row) => codes(row.option as string))).toEqual([
    ...['topic', 'partitions', 'prefix', 'name', 'logger', 'registry', 'maxEntries', 'maxBytes', 'maxPayloadBytes'],
  ]);
  expect(log.flatMap((row) => codes(row.option as string)).sort()).toEqual(
    fieldsOf('src/backend-log/create-log.ts', 'LogOptions').sort(),
  );
  const event = table(PAGE, ['field', 'default', 'meaning']);
  expect(event.map((row) => code(row.field))).toEqual(fieldsOf('src/backend-log/create-log.ts', 'NewEvent'));
});

test('docs/groups.md lists the options of a member, with their defaults', () => {
  const rows = table(PAGE, ['option', 'default', 'unit', 'meaning']);
  const defaults = groupSettings({});
  const own = fieldsOf('src/backend-log/group.ts', 'RunOptions');
  expect(rows.map((row) => code(row.option)).sort()).toEqual([...Object.keys(defaults), ...own].sort());
  for (const { option, default: said } of rows) {
    const value = defaults[code(option) as keyof typeof defaults];
    expect([option, said?.replace(',', '')]).toEqual([option, value === undefined ? 'none' : String(value)]);
  }
});

test('docs/groups.md lists the metrics of a member, with the values of their labels', async () => {
  const registry = new Registry();
  // nobody is there: what it counts is declared all the same
  const log = createLog('redis://127.0.0.1:1', { registry });
  const member = log.group('g').run(() => {});
  const failed = expect(member.ready).rejects.toThrow();
  const exported = (await registry.getMetricsAsJSON()).filter(({ name }) => name.startsWith('holdfast_group_'));
  await log.close();
  await failed;
  const rows = table(PAGE, ['metric', 'meaning']);
  const named = (text: string): string => code(text).replace(/\{.*/, '');
  expect(rows.map((row) => named(row.metric as string)).sort()).toEqual(exported.map(({ name }) => name).sort());
  for (const { name, values } of exported) {
    const [label] = Object.keys(values[0]?.labels ?? {}).filter((key) => key !== 'group');
    if (label === undefined) continue;
    const row = rows.find(({ metric }) => named(metric as string) === name);
    expect(code(row?.metric)).toBe(`${name}{${label}}`);
    const said = codes(row?.meaning ?? '');
    for (const { labels } of values) expect(said).toContain((labels as Record<string, string>)[label]);
  }
});
