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

function inScripts(): string[] {
  const call = /\bp?call\('([A-Z]+)'(?:, '([A-Z]+)')?/g;
  return filesIn('src', '.lua')
    .filter((path) => !isOfBridge(path))
    .flatMap((path) => [...read(path).matchAll(call)].map((match) => named(match[1] as string, match[2])));
}

/** The private Redis is the relay's own, and needs no list. */
function inModules(): string[] {
  const paths = filesIn('src', '.ts').filter((path) => !path.startsWith('src/embedded/') && !isOfBridge(path));
  const method = /\bredis\s*\.([a-zA-Z]+)\(\s*(?:'([A-Z]+)')?/g;
  const raw = /\bcall(?:Buffer)?\(\s*'([A-Z]+)'(?:, '([A-Z]+)')?/g;
  return paths.flatMap((path) => {
    const text = read(path);
    const methods = [...text.matchAll(method)].filter((match) => !NO_COMMANDS.has(match[1] as string));
    return [
      ...methods.map((match) => named(match[1] as string, match[2])),
      ...[...text.matchAll(raw)].map((match) => named(match[1] as string, match[2])),
    ];
  });
}

test('the ACL in docs/operations.md allows what the relay uses, and nothing else', () => {
  const rule = block('docs/operations.md', '### Access control');
  const allowed = [...rule.matchAll(/\+([a-z|]+)/g)].map((match) => match[1] as string);
  const used = new Set([...HANDSHAKE, 'eval', 'evalsha', ...inScripts(), ...inModules()]);
  expect([...allowed].sort()).toEqual([...used].sort());
});
