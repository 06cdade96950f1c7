import { expect, test } from 'vitest';
import { DEFAULT_SETTINGS } from '../../src/rpc/index.js';
import { code, read, table } from './markdown.js';

const PAGE = 'docs/rpc.md';

test('docs/rpc.md lists every outcome of a call, and what a socket is told before there is one', () => {
  const [, listed = ''] = /const OUTCOMES = \[([\s\S]*?)\]/.exec(read('src/rpc/metrics.ts')) ?? [];
  const real = [...listed.matchAll(/'(\w+)'/g)].map((match) => match[1] as string).filter((name) => name !== 'ok');
  const rows = table(PAGE, ['outcome', 'when', '`mayHaveRun`', 'what to do']);
  expect(rows.map((row) => code(row.outcome)).sort()).toEqual(
    [...real, 'permission_denied', 'too_many_requests'].sort(),
  );
});

test('docs/rpc.md lists the options of holdfast/rpc, with their defaults', () => {
  const source = read('src/attach/rpc-process.ts');
  const [, own = ''] = /interface RpcProcessOptions[^{]*\{([\s\S]*?)\n\}/.exec(source) ?? [];
  const names = [...own.matchAll(/readonly (\w+)\?:/g)].map((match) => match[1] as string);
  expect(names).toContain('prefix');
  const rows = table(PAGE, ['option', 'default', 'meaning']);
  expect(rows.map((row) => code(row.option))).toEqual([...names, ...Object.keys(DEFAULT_SETTINGS)]);
  const defaults = rows.slice(names.length).map((row) => Number(code(row.default)));
  expect(defaults).toEqual(Object.values(DEFAULT_SETTINGS));
});
