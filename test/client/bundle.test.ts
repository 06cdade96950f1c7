import { gzipSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { read } from '../docs/markdown.js';
import { bundle } from '../harness/browser.js';

const ENTRY = 'src/client/index.ts';
/** gzip, without `socket.io-client`. */
const BUDGET_BYTES = 12_000;

test('the SDK for browsers is small, as docs/sdk.md says', async () => {
  const [own, whole] = await Promise.all([bundle(ENTRY, ['socket.io-client']), bundle(ENTRY)]);
  const [ownBytes, wholeBytes] = [own, whole].map(({ code }) => gzipSync(code, { level: 9 }).length) as [
    number,
    number,
  ];
  expect(ownBytes).toBeLessThanOrEqual(BUDGET_BYTES);
  const told = /\*\*([\d.]+) kB\*\* gzip, ([\d.]+) kB with/.exec(read('docs/sdk.md'));
  expect([told?.[1], told?.[2]]).toEqual([ownBytes, wholeBytes].map((bytes) => (bytes / 1000).toFixed(1)));
});

/** What a bundle for browsers must not have. */
function foreignIn({ code, imports, dynamicImports, moduleIds }: Awaited<ReturnType<typeof bundle>>): string[] {
  const rooms = moduleIds.map((id) => /\/src\/([^/]+)\//.exec(id)?.[1] ?? id);
  return [
    ...[...imports, ...dynamicImports].filter((name) => name !== 'socket.io-client'),
    ...new Set(rooms.filter((room) => !['client', 'core', 'wire'].includes(room))),
    ...(code.match(/\bnode:\w+|\brequire\(|\bprocess\.|\bBuffer\b/g) ?? []),
  ];
}

test('the SDK for browsers holds nothing of the server and none of its modules', async () => {
  expect(foreignIn(await bundle(ENTRY, ['socket.io-client']))).toEqual([]);
});

test('what a browser lacks would be seen', async () => {
  const forNode = await bundle('src/client/file-store.ts', ['node:fs/promises']);
  expect(foreignIn(forNode)).toContain('node:fs/promises');
  const ofServer = await bundle('src/redis/clock.ts', [/^[^./]/]);
  expect(foreignIn(ofServer)).toContain('redis');
});
