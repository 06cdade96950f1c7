import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { block, filesIn, read } from './markdown.js';

/** Methods of a client of ioredis that are no commands. */
const NO_COMMANDS = new Set(['on', 'connect', 'disconnect', 'evalsha', 'call', 'callBuffer']);
/** With a subcommand each. */
const CONTAINERS = new Set(['xgroup', 'xinfo', 'config', 'memory', 'client', 'script', 'pubsub']);
/** What ioredis says at every connect, and what a URL with a database needs. `client|setinfo` has no name on Redis 7.0. */
const HANDSHAKE = ['auth', 'select', 'client|setname', 'info'];

const named = (command: string, first: string | undefined): string => {
  const name = command.toLowerCase();
  return CONTAINERS.has(name) ? `${name}|${(first ?? '').toLowerCase()}` : name;
};

/** Of the adapter's bridge, which the relay has not: docs/migrating-from-streams-adapter.md names what it needs more. */
const isOfBridge = (path: string): boolean => /\/adapter\/(lua\/)?(bridge|streams)-/.test(path);

/** What a file runs: scripts, and other files of ours but for types. A room's index would name all of the room. */
function usedBy(path: string): string[] {
  const text = read(path);
  const folder = dirname(path);
  const imports = [...text.matchAll(/^(?:import|export) (?!type )[^;]*? from '(\.[^']+)\.js';/gm)].map(
    (match) => `${join(folder, match[1] as string)}.ts`,
  );
  const scripts = [...text.matchAll(/loadScript\(import\.meta\.url, ([^)]+)\)/g)].flatMap((match) =>
    [...(match[1] as string).matchAll(/'([^']+)'/g)].map(([, name]) => join(folder, 'lua', `${name}.lua`)),
  );
  return [...imports.filter((file) => !file.endsWith('/index.ts')), ...scripts];
}

function reachableFrom(...roots: readonly string[]): Set<string> {
  const found = new Set<string>();
  const open = [...roots];
  for (let path = open.pop(); path !== undefined; path = open.pop()) {
    if (found.has(path)) continue;
    found.add(path);
    if (path.endsWith('.ts')) open.push(...usedBy(path));
  }
  return found;
}

/** Of a back end's own process: members, and what it appends. The file between them and Redis is for operators too. */
const OF_MEMBERS = new Set([
  ...reachableFrom('src/log/groups/member.ts', 'src/log/appender.ts'),
  ...filesIn('src/backend-log', '.ts'),
  'src/log/access.ts',
]);
const OF_OPERATORS = reachableFrom('src/log/groups/admin.ts', 'src/log/trim-to.ts');
const isOfMembersOnly = (path: string): boolean =>
  path.startsWith('src/log/groups/') && OF_MEMBERS.has(path) && !OF_OPERATORS.has(path);

/** The private Redis is the relay's own, and needs no list. */
const OF_RELAY = [...filesIn('src', '.ts'), ...filesIn('src', '.lua')].filter(
  (path) => !path.startsWith('src/embedded/') && !isOfBridge(path) && !isOfMembersOnly(path),
);

function commandsIn(path: string): string[] {
  const text = read(path);
  if (path.endsWith('.lua')) {
    const call = /\bp?call\('([A-Z]+)'(?:, '([A-Z]+)')?/g;
    return [...text.matchAll(call)].map((match) => named(match[1] as string, match[2]));
  }
  const method = /\bredis\s*\.([a-zA-Z]+)\(\s*(?:'([A-Z]+)')?/g;
  const raw = /\bcall(?:Buffer)?\(\s*'([A-Z]+)'(?:, '([A-Z]+)')?/g;
  return [
    ...[...text.matchAll(method)].filter((match) => !NO_COMMANDS.has(match[1] as string)),
    ...text.matchAll(raw),
  ].map((match) => named(match[1] as string, match[2]));
}

test.each([
  ['a relay', '### Access control', OF_RELAY],
  ['a back end with groups', '#### Of back ends with groups', [...OF_MEMBERS]],
])('the ACL in docs/operations.md allows what %s uses, and nothing else', (_who, heading, paths) => {
  const rule = block('docs/operations.md', heading);
  const allowed = [...rule.matchAll(/\+([a-z|]+)/g)].map((match) => match[1] as string);
  const used = new Set([...HANDSHAKE, 'eval', 'evalsha', ...paths.flatMap(commandsIn)]);
  expect([...allowed].sort()).toEqual([...used].sort());
});

test('the search for what a back end runs finds its scripts, and no operator’s', () => {
  const scripts = [...OF_MEMBERS].filter((path) => path.endsWith('.lua'));
  expect(scripts).toContain('src/log/lua/append.lua');
  const groups = filesIn('src/log/groups/lua', '.lua');
  const ofOperators = groups.filter((path) => OF_OPERATORS.has(path));
  expect(ofOperators.length).toBeGreaterThan(0);
  expect(groups.filter((path) => !OF_MEMBERS.has(path))).toEqual(ofOperators);
});
