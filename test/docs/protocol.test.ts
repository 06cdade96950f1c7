import { expect, test } from 'vitest';
import { isName, isPublishableEvent } from '../../src/wire/names.js';
import { codes, filesIn, read, table } from './markdown.js';

const all = (path: string, pattern: RegExp): string[] => [...read(path).matchAll(pattern)].map((m) => m[1] as string);
const inGateway = (pattern: RegExp): string[] => [
  ...new Set(filesIn('src/gateway', '.ts').flatMap((path) => all(path, pattern))),
];
const doc = read('docs/protocol.md');

test('docs/protocol.md lists what a client can send', () => {
  const rows = table('docs/protocol.md', ['event', 'payload', 'ack']);
  const documented = rows.flatMap((row) => codes(row.event as string));
  expect(documented.sort()).toEqual(all('src/gateway/socket/commands.ts', /(?:listen|inTurn)\('([\w-]+)'/g).sort());
});

test("docs/protocol.md lists the relay's own events", () => {
  const rows = table('docs/protocol.md', ['event', 'payload']);
  const documented = rows.flatMap((row) => codes(row.event as string));
  expect(documented.sort()).toEqual(inGateway(/'(holdfast:[a-z]+)'/g).sort());
});

test('docs/protocol.md lists every code that comes with holdfast:closing', () => {
  const rows = table('docs/protocol.md', ['`code`', 'when', '`reconnect`']);
  const documented = rows.flatMap((row) => codes(row['`code`'] as string));
  expect(documented.sort()).toEqual(inGateway(/\{\s*code: '([a-z_]+)',\s*reason/g).sort());
});

test('names that docs/protocol.md calls reserved are', () => {
  const sentence = /^Nobody publishes an event[\s\S]*?`bad_request`/m.exec(doc)?.[0] ?? '';
  const reserved = codes(sentence).filter((name) => name !== 'bad_request');
  expect(reserved).toContain('presence');
  for (const name of reserved)
    expect(isPublishableEvent(name.endsWith(':') || name.endsWith('-') ? `${name}x` : name)).toBe(false);
  expect(isPublishableEvent('chat:holdfast:/😀')).toBe(true);
});

test('a name has 1 to 200 characters, as docs/protocol.md says', () => {
  expect(doc).toContain('1 to 200 UTF-16 units');
  expect(['', 'a', 'a'.repeat(200), 'a'.repeat(201)].map(isName)).toEqual([false, true, true, false]);
});
