import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { jwtVerify } from 'jose';
import { describe, expect, it, onTestFinished } from 'vitest';
import { program } from '../../src/cli/program.js';
import { run } from './run.js';
import { runHere } from './run-here.js';

const SECRET = 'a-secret-of-thirty-two-characters!';
const HINT = '(holdfast --help lists the commands, holdfast <command> --help what each takes)\n';

async function folder(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'holdfast-cli-'));
  onTestFinished(() => rm(dir, { recursive: true, force: true }));
  return dir;
}

describe('help', () => {
  it('lists every command', async () => {
    const { code, out, err } = await run(['--help']);
    expect({ code, err }).toEqual({ code: 0, err: '' });
    const commands = [...out.matchAll(/^ {2}([a-z]+) /gm)].map(([, name]) => name);
    const ofLog = ['publish', 'tail', 'replay', 'rpc', 'topics', 'groups', 'dlq'];
    const ofAdmission = ['migrate', 'tenants', 'devices', 'keys'];
    expect(commands).toEqual(['serve', 'token', 'check', ...ofLog, ...ofAdmission, 'help']);
  });

  it('without a command it is shown too, and it is a failure', async () => {
    const { code, err } = await runHere([]);
    expect(code).toBe(1);
    expect(err).toMatch(/^Usage: holdfast/);
  });

  it('of a command names its options', async () => {
    const options = (...path: string[]): string[] => {
      let command = program();
      for (const name of path) command = command.commands.find((sub) => sub.name() === name) as typeof command;
      return [...command.helpInformation().matchAll(/^ {2}(?:-\w, )?(--[a-z-]+)/gm)].map(([, name]) => name as string);
    };
    expect(options('serve')).toEqual(['--port', '--ops-port', '--redis-url', '--pod', '--help']);
    expect(options('token')).toEqual(['--user', '--tenant', '--device', '--ttl', '--subscribe', '--publish', '--help']);
    expect(options('check')).toEqual(['--output', '--help']);
    expect(options('publish')).toEqual(['--tenant', '--id', '--output', '--redis-url', '--help']);
    expect(options('tail')).toEqual([
      '--from',
      '--group',
      '--room',
      '--tenant',
      '--topic',
      '--count',
      '--no-follow',
      '--output',
      '--redis-url',
      '--help',
    ]);
    const common = ['--output', '--redis-url', '--help'];
    for (const verb of ['list', 'describe']) expect(options('topics', verb)).toEqual(common);
    expect(options('topics', 'trim')).toEqual(['--to', ...common.slice(0, 2), '--yes', '--help']);
    expect(options('groups', 'list')).toEqual([...common.slice(0, 2), '--topic', '--help']);
    expect(options('groups', 'describe')).toEqual(['--members', '--topic', ...common]);
    const places = ['--to-earliest', '--to-latest', '--to-datetime', '--by-duration', '--shift-by', '--to-position'];
    expect(options('groups', 'reset-offsets')).toEqual([...places, '--dry-run', '--execute', '--topic', ...common]);
    expect(options('groups', 'delete')).toEqual(['--topic', ...common.slice(0, 2), '--yes', '--help']);
    expect(options('groups', 'gc')).toEqual([...common.slice(0, 2), '--topic', '--silent-for', '--yes', '--help']);
    expect(options('dlq', 'list')).toEqual(['--topic', ...common.slice(0, 2), '--count', '--help']);
    expect(options('dlq', 'show')).toEqual(['--topic', ...common]);
    expect(options('dlq', 'redrive')).toEqual(['--all', '--topic', ...common]);
    expect(options('dlq', 'drop')).toEqual(['--all', '--topic', ...common.slice(0, 2), '--yes', '--help']);
  });
});

describe('a mistake is said in a line, with exit code 1', () => {
  it.each([
    [['grops'], "error: unknown command 'grops'\n(Did you mean groups?)\n"],
    [['topics', 'lst'], "error: unknown command 'lst'\n(Did you mean list?)\n"],
    [['token'], "error: required option '-u, --user <name>' not specified\n"],
    [['publish', 'news'], "error: missing required argument 'event'\n"],
    [['publish', 'a', 'b', 'c', 'd'], "error: too many arguments for 'publish'. Expected 3 arguments but got 4.\n"],
  ])('%j', async (args, complaint) => {
    expect(await runHere(args)).toMatchObject({ code: 1, out: '', err: complaint + HINT });
  });

  it.each([
    [['topics', 'list', '-o', 'xml'], '-o: wants text or json, got "xml"'],
    [['serve', '--port', 'abc'], '--port: wants a whole number from 0 to 65535, got "abc"'],
    [['tail', '-n', '1.5'], '--count: wants a whole number above 0, got "1.5"'],
    [['token', '-u', 'me', '--ttl', 'soon'], '--ttl: wants a duration such as 30s or 1h, got "soon"'],
    [['token', '-u', ''], '--user: wants 1 to 200 characters without control characters'],
    [['publish', 'news', 'rpc-call'], 'event: "rpc-call" is reserved'],
    [
      ['topics', 'list', '--redis-url', 'http://x'],
      '--redis-url: wants redis://[user:password@]host:port[/db] or rediss://…',
    ],
  ])('%j', async (args, complaint) => {
    expect(await runHere(args)).toMatchObject({ code: 1, out: '', err: `holdfast: ${complaint}\n` });
  });

  it.concurrent.each([
    [['lst'], `error: unknown command 'lst'\n(Did you mean list?)\n${HINT}`],
    [['list', '-o', 'xml'], 'holdfast: -o: wants text or json, got "xml"\n'],
  ])('by a process of its own too: topics %j', async (args, complaint) => {
    expect(await run(['topics', ...args])).toMatchObject({ code: 1, out: '', err: complaint });
  });

  it.each([
    ['topics', 'list'],
    ['publish', 'news', 'hello'],
  ])('%s %s without a relay on the data folder', async (...args) => {
    const dir = await folder();
    const { code, err } = await runHere(args, { HOLDFAST_DATA_DIR: dir });
    expect(code).toBe(1);
    expect(err).toBe(
      `holdfast: no relay runs on ${dir}: start one with npm start, or say which Redis with --redis-url or REDIS_URL\n`,
    );
  });
});

describe.concurrent('a Redis that is away is a line, with exit code 2', () => {
  it.each([
    ['groups', 'describe'],
    ['publish', 'news', 'hello'],
  ])('%s %s', async (...args) => {
    const { code, out, err, tookMs } = await run([...args, '--redis-url', 'redis://127.0.0.1:1']);
    expect({ code, out }).toEqual({ code: 2, out: '' });
    expect(err).toBe('holdfast: Redis at 127.0.0.1:1 cannot be reached: connect ECONNREFUSED 127.0.0.1:1\n');
    expect(tookMs).toBeLessThan(15_000);
  });
});

describe('token', () => {
  it('prints one that the secret verifies', async () => {
    const args = [
      '-u',
      'ann',
      '-t',
      'acme',
      '-d',
      'phone',
      '--ttl',
      '2m',
      '--subscribe',
      'a:*',
      'b',
      '--publish',
      'a:*',
    ];
    const { code, out } = await run(['token', ...args], { HOLDFAST_JWT_SECRET: SECRET });
    expect(code).toBe(0);
    const { payload, protectedHeader } = await jwtVerify(out.trim(), new TextEncoder().encode(SECRET));
    expect(protectedHeader.alg).toBe('HS256');
    expect(payload).toMatchObject({
      sub: 'ann',
      tenant: 'acme',
      device: 'phone',
      caps: { subscribe: ['a:*', 'b'], publish: ['a:*'] },
    });
    expect(payload.exp! - payload.iat!).toBeGreaterThanOrEqual(119);
    expect(payload.exp! - payload.iat!).toBeLessThanOrEqual(121);
  });

  it('without options claims a user and nothing else', async () => {
    const { out } = await runHere(['token', '-u', 'ann'], { HOLDFAST_JWT_SECRET: SECRET });
    const { payload } = await jwtVerify(out.trim(), new TextEncoder().encode(SECRET));
    expect(Object.keys(payload).sort()).toEqual(['exp', 'iat', 'sub']);
  });

  it('says what it lacks when there is nothing to sign with, and makes no secret of its own', async () => {
    const dir = join(await folder(), 'none');
    expect(await runHere(['token', '-u', 'ann'], { HOLDFAST_DATA_DIR: dir })).toMatchObject({
      code: 1,
      out: '',
      err: `holdfast: nothing to sign with: set HOLDFAST_JWT_SECRET, or start a relay on ${dir} with npm start\n`,
    });
  });

  it('is not for relays whose tokens an issuer signs', async () => {
    const { code, err } = await runHere(['token', '-u', 'ann'], { HOLDFAST_JWT_JWKS_URL: 'https://issuer/keys' });
    expect(code).toBe(1);
    expect(err).toBe('holdfast: tokens are signed by your issuer here: this relay only has a public key\n');
  });
});

describe('check', () => {
  it('prints what is in force, secrets masked, and warns of unknown names', async () => {
    const file = join(await folder(), 'url');
    await writeFile(file, 'redis://:hunter2@redis:6379\n');
    const { code, out, err } = await run(['check'], {
      REDIS_URL_FILE: file,
      HOLDFAST_JWT_SECRET: SECRET,
      PORT: '4000',
      HOLDFAST_DRIAN_MS: '5s',
    });
    expect(code).toBe(0);
    expect(out).toMatch(/^PORT=4000$/m);
    expect(out).toMatch(/^REDIS_URL=\*\*\*$/m);
    expect(out).toMatch(/^HOLDFAST_JWT_SECRET=\*\*\*$/m);
    expect(out).toMatch(/^HOLDFAST_DRAIN_MS=30000$/m);
    expect(out).toMatch(/^HOLDFAST_API_KEYS=$/m);
    expect(out + err).not.toMatch(/hunter2|a-secret/);
    expect(err).toBe('warning: unknown setting HOLDFAST_DRIAN_MS\n');
  });

  it('as JSON has the same, and the warnings', async () => {
    const { code, out, err } = await runHere(['check', '-o', 'json'], {
      HOLDFAST_DRIAN_MS: '5s',
      HOLDFAST_JWT_SECRET: SECRET,
    });
    expect({ code, err }).toEqual({ code: 0, err: '' });
    expect(JSON.parse(out)).toMatchObject({
      settings: { PORT: 3000, REDIS_URL: null, HOLDFAST_JWT_SECRET: '***', HOLDFAST_API_KEYS: [] },
      warnings: ['unknown setting HOLDFAST_DRIAN_MS'],
    });
  });

  it('a configuration that would not start is a line', async () => {
    expect(await runHere(['check'], { REDIS_URL: 'redis://r:1' })).toMatchObject({
      code: 1,
      out: '',
      err: 'holdfast: no key verifies tokens: set HOLDFAST_JWT_SECRET, HOLDFAST_JWT_PUBLIC_KEY or HOLDFAST_JWT_JWKS_URL\n',
    });
  });
});
