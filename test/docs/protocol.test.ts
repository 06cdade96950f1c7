import { expect, test } from 'vitest';
import { RPC_COMMANDS } from '../../src/rpc/index.js';
import { isName, isPublishableEvent } from '../../src/wire/names.js';
import { codes, filesIn, read, table } from './markdown.js';

const all = (path: string, pattern: RegExp): string[] => [...read(path).matchAll(pattern)].map((m) => m[1] as string);
const inGateway = (pattern: RegExp): string[] => [
  ...new Set(filesIn('src/gateway', '.ts').flatMap((path) => all(path, pattern))),
];
/** Of a union of texts. */
const codesIn = (union: string): string[] => [...union.matchAll(/'([a-z_]+)'/g)].map((match) => match[1] as string);
const doc = read('docs/protocol.md');

test('docs/protocol.md lists what a client can send', () => {
  const rows = table('docs/protocol.md', ['event', 'payload', 'ack']);
  const documented = rows.flatMap((row) => codes(row.event as string));
  const real = all('src/gateway/socket/commands.ts', /(?:listen|inTurn)\('([\w-]+)'/g);
  expect(documented.sort()).toEqual([...real, ...RPC_COMMANDS].sort());
});

test("docs/protocol.md lists the relay's own events", () => {
  const rows = table('docs/protocol.md', ['event', 'payload']);
  const documented = rows.flatMap((row) => codes(row.event as string));
  const ofCalls = all('src/rpc/rpc-socket.ts', /emit\('(rpc-[a-z]+)'/g);
  // these two have the name of what they confirm
  expect(read('src/rpc/rpc-socket.ts')).toMatch(/emit\(`\$\{command\}ed`/);
  const confirming = ['rpc-registered', 'rpc-unregistered'];
  const real = new Set([...inGateway(/'((?:holdfast|device):[a-z]+)'/g), ...ofCalls, ...confirming]);
  expect(documented.sort()).toEqual([...real].sort());
});

test('docs/protocol.md lists every code that comes with holdfast:closing', () => {
  const rows = table('docs/protocol.md', ['`code`', 'when', '`reconnect`']);
  const documented = rows.flatMap((row) => codes(row['`code`'] as string));
  const endings = all('src/gateway/socket/entrance.ts', /readonly code: (.*);/g).flatMap((text) => codesIn(text));
  const refusals = all('src/gateway/socket/refusal.ts', /static (unavailable)/g);
  const real = new Set([...inGateway(/\{\s*code: '([a-z_]+)',\s*reason/g), ...endings, ...refusals]);
  expect(documented.sort()).toEqual([...real].sort());
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
