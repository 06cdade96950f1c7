import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { settingsOf } from '../../src/adapter/options.js';
import { silentLogger } from '../../src/core/ports.js';
import { code, filesIn, read, table } from '../docs/markdown.js';

const PAGE = 'docs/migrating-from-streams-adapter.md';

/** The adapter's own types say what it takes. */
function optionsOfStreamsAdapter(): string[] {
  const types = new URL('../../node_modules/@socket.io/redis-streams-adapter/dist/adapter.d.ts', import.meta.url);
  const text = readFileSync(fileURLToPath(types), 'utf8');
  const [, body = ''] = /interface RedisStreamsAdapterOptions \{(.*?)\n\}/s.exec(text) ?? [];
  const own = [...body.matchAll(/^ {4}(\w+)\?:/gm)].map((match) => match[1] as string);
  // of the cluster adapter that it is made of
  return [...own, 'heartbeatInterval', 'heartbeatTimeout'];
}

/** What is said of an option when it is given. */
function saidOf(name: string, value: unknown): string {
  const lines: string[] = [];
  const logger = {
    ...silentLogger,
    info: (_: object, line: string) => void lines.push(line),
    warn: (_: object, line: string) => void lines.push(line),
  };
  settingsOf({ [name]: value, logger });
  return lines.join();
}

test('the page has every option of the streams adapter, and says of each what becomes of it', () => {
  const rows = table(PAGE, ['of the streams adapter', 'here']);
  const documented = new Map(rows.map((row) => [code(row['of the streams adapter']), row.here]));
  expect([...documented.keys()].sort()).toEqual([...new Set(optionsOfStreamsAdapter())].sort());
  for (const [name, here] of documented) {
    const said = saidOf(name, name === 'streamName' ? 'x' : 1);
    expect(said).toBe(here?.startsWith('without effect') ? `without effect: ${name}` : '');
  }
});

test('the page names the commands that only the bridge needs', () => {
  const text = filesIn('src/adapter', '.ts')
    .concat(filesIn('src/adapter', '.lua'))
    .filter((path) => /(bridge|streams)-?/.test(path))
    .map(read)
    .join();
  const relay = read('docs/operations.md');
  const [, listed = ''] = /```\n(\+multi[^`]*)\n```/.exec(read(PAGE)) ?? [];
  const used = new Set<string>();
  for (const [, name = '', sub] of text.matchAll(/\bcall\('([A-Z]+)'(?:, '([A-Z]+)')?/g))
    used.add((/^(XINFO|PUBSUB)$/.test(name) ? `${name}|${sub}` : name).toLowerCase());
  for (const [, name = ''] of text.matchAll(/\bredis\s*\.([a-z]+)\(/g))
    if (name !== 'on' && name !== 'call') used.add(name);
  for (const [, name = ''] of text.matchAll(/^\s*\.(publish|exec)\(/gm)) used.add(name);
  const more = [...used].filter((name) => !relay.includes(`+${name}`)).map((name) => `+${name}`);
  expect(listed.split(' ').sort()).toEqual(more.sort());
});
