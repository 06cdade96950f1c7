import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { loadConfig, loadToolConfig, OPTIONS, printable } from '../src/config.js';
import { parseDuration } from '../src/core/duration.js';
import { FatalError } from '../src/core/errors.js';

const SECRET = 'a-secret-of-thirty-two-characters!';
const production = { REDIS_URL: 'redis://127.0.0.1:6379', HOLDFAST_JWT_SECRET: SECRET };

function fileWith(text: string): string {
  const dir = mkdtempSync(join(tmpdir(), 'holdfast-config-'));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  const file = join(dir, 'value');
  writeFileSync(file, text);
  return file;
}

/** The one line that a bad setting ends the process with. */
function complaint(load: () => unknown): string {
  try {
    load();
  } catch (error) {
    expect(error).toBeInstanceOf(FatalError);
    expect((error as Error).message).not.toContain('\n');
    return (error as Error).message;
  }
  throw new Error('it was accepted');
}

describe('settings', () => {
  it('need none, and are frozen', () => {
    const { config, warnings } = loadConfig({});
    expect(config).toMatchObject({ port: 3000, opsPort: 3001, redisUrl: undefined, dataDir: '.holdfast' });
    expect(warnings).toEqual([]);
    expect(Object.isFrozen(config)).toBe(true);
  });

  it('come from flags, then the environment, then the defaults; an empty one is unset', () => {
    expect(loadConfig({ PORT: '4000' }, { PORT: '5000' }).config.port).toBe(5000);
    expect(loadConfig({ PORT: '4000' }, { PORT: undefined }).config.port).toBe(4000);
    expect(loadConfig({ PORT: '' }, { PORT: '' }).config.port).toBe(3000);
  });

  it('read secrets from files too, without the line feed at the end', () => {
    const HOLDFAST_JWT_SECRET_FILE = fileWith(`${SECRET}\n`);
    expect(loadConfig({ HOLDFAST_JWT_SECRET_FILE }).config.jwtSecret).toBe(SECRET);
    expect(loadToolConfig({}, { REDIS_URL_FILE: fileWith('redis://r:1\n') }).redisUrl).toBe('redis://r:1');
    expect(complaint(() => loadConfig({ HOLDFAST_JWT_SECRET_FILE: '/does/not/exist' }))).toBe(
      'HOLDFAST_JWT_SECRET_FILE: cannot read the file (ENOENT)',
    );
  });

  it('an empty secret file is a fault, not an unset secret', () => {
    expect(complaint(() => loadConfig({ HOLDFAST_JWT_SECRET_FILE: fileWith('\n') }))).toBe(
      'HOLDFAST_JWT_SECRET_FILE: wants at least 32 characters',
    );
  });

  it('warn of names that look like ours and are not', () => {
    const env = { HOLDFAST_DRIAN_MS: '1', HOLDFAST_POD_FILE: '/x', HOLDFAST_URL: 'for a tool', OTHER: '1' };
    expect(loadConfig(env).warnings).toEqual([
      'unknown setting HOLDFAST_DRIAN_MS',
      'unknown setting HOLDFAST_POD_FILE',
    ]);
  });

  it('log less to a newcomer, unless told otherwise', () => {
    expect(loadConfig({}).config.logLevel).toBe('warn');
    expect(loadConfig({ LOG_LEVEL: 'info' }).config.logLevel).toBe('info');
    expect(loadConfig(production).config.logLevel).toBe('info');
  });

  it.each([
    ['PORT', 'abc', 'PORT: wants a whole number from 0 to 65535, got "abc"'],
    ['OPS_PORT', '70000', 'OPS_PORT: wants a whole number from 0 to 65535, got "70000"'],
    ['LOG_LEVEL', 'loud', 'LOG_LEVEL: wants one of trace, debug, info, warn, error, fatal, silent, got "loud"'],
    [
      'HOLDFAST_DRAIN_MS',
      '11m',
      'HOLDFAST_DRAIN_MS: wants a duration such as 1500, 30s or 5m, from 0 to 600000 ms, got "11m"',
    ],
    ['HOLDFAST_GATEWAY_POLLING', 'yes', 'HOLDFAST_GATEWAY_POLLING: wants on or off, got "yes"'],
    [
      'HOLDFAST_POD',
      'a\u0007',
      'HOLDFAST_POD: wants a name of 1 to 200 characters without control characters, got "a\\u0007"',
    ],
    [
      'HOLDFAST_REDIS_PREFIX',
      'a b',
      'HOLDFAST_REDIS_PREFIX: wants 1 to 64 of the characters A–Z a–z 0–9 _ : . -, got "a b"',
    ],
    ['SOCKET_PATH', 'updates', 'SOCKET_PATH: wants a path, got "updates"'],
    [
      'REDIS_URL',
      'redis://a:1,redis://b:2',
      'REDIS_URL: wants one Redis, redis:// or rediss://: Redis Cluster and Sentinel are not supported yet',
    ],
    [
      'REDIS_URL',
      'redis+sentinel://a:1/main',
      'REDIS_URL: wants one Redis, redis:// or rediss://: Redis Cluster and Sentinel are not supported yet',
    ],
    ['REDIS_URL', 'http://hunter2@r', 'REDIS_URL: wants redis://[user:password@]host:port[/db] or rediss://…'],
    ['HOLDFAST_JWT_SECRET', 'hunter2', 'HOLDFAST_JWT_SECRET: wants at least 32 characters'],
    [
      'HOLDFAST_JWT_PUBLIC_KEY',
      '-----BEGIN PRIVATE KEY-----',
      'HOLDFAST_JWT_PUBLIC_KEY: wants a PEM public key (SPKI)',
    ],
    [
      'HOLDFAST_JWT_JWKS_URL',
      'file:///etc/keys.json',
      'HOLDFAST_JWT_JWKS_URL: wants an http(s) URL without user and password, got "file:///etc/keys.json"',
    ],
    [
      'HOLDFAST_JWT_JWKS_URL',
      'https://:hunter2@issuer/keys',
      'HOLDFAST_JWT_JWKS_URL: wants an http(s) URL without user and password, got "https://***@issuer/keys"',
    ],
    [
      'HOLDFAST_API_KEYS',
      'hunter2',
      'HOLDFAST_API_KEYS: wants key[:tenant], by commas, each key at least 32 characters',
    ],
  ])('%s=%s ends in one line: what, which value (of no secret), what instead', (name, value, line) => {
    expect(complaint(() => loadConfig({ [name]: value }))).toBe(line);
  });

  it('a bad flag is named as it was typed', () => {
    expect(complaint(() => loadConfig({}, { OPS_PORT: 'x' }))).toBe(
      '--ops-port: wants a whole number from 0 to 65535, got "x"',
    );
    expect(complaint(() => loadConfig({}, { HOLDFAST_POD: '\n' }))).toMatch(/^--pod: wants a name/);
  });

  it('that contradict each other end in one line', () => {
    expect(complaint(() => loadConfig({ PORT: '3001' }))).toBe('PORT and OPS_PORT are both 3001');
    expect(complaint(() => loadConfig({ ...production, HOLDFAST_JWT_JWKS_URL: 'https://issuer/keys' }))).toMatch(
      /^set one of /,
    );
    expect(complaint(() => loadConfig({ REDIS_URL: production.REDIS_URL }))).toMatch(/^no key verifies tokens: set /);
  });

  it('of tools need no key for tokens', () => {
    expect(loadToolConfig({}, { REDIS_URL: 'redis://r:1' }).redisUrl).toBe('redis://r:1');
    expect(loadToolConfig({ REDIS_URL: 'redis://flag:1' }, { REDIS_URL: 'redis://r:1' }).redisUrl).toBe(
      'redis://flag:1',
    );
  });

  it('API keys may be bound to a tenant', () => {
    const key = 'k'.repeat(32);
    expect(loadConfig({ HOLDFAST_API_KEYS: `${key}, ${key}:acme` }).config.apiKeys).toEqual([
      { key, tenant: undefined },
      { key, tenant: 'acme' },
    ]);
  });

  it('are printed all, secrets masked', () => {
    const env = {
      ...production,
      REDIS_URL: 'redis://:hunter2@r:1',
      HOLDFAST_API_KEYS: 'hunter2'.repeat(6),
    };
    const printed = printable(loadConfig(env).config);
    expect(Object.keys(printed)).toEqual(Object.values(OPTIONS).map(({ env: name }) => name));
    expect(printed).toMatchObject({
      REDIS_URL: '***',
      HOLDFAST_JWT_SECRET: '***',
      HOLDFAST_API_KEYS: '***',
      HOLDFAST_JWT_PUBLIC_KEY: null,
      PORT: 3000,
    });
    expect(JSON.stringify(printed)).not.toMatch(/hunter2|a-secret/);
  });
});

it.each([
  ['1500', 1500],
  ['250ms', 250],
  ['30s', 30_000],
  ['1.5m', 90_000],
  ['2h', 7_200_000],
  ['1d', 86_400_000],
  ['', undefined],
  ['-1', undefined],
  ['1w', undefined],
  ['soon', undefined],
])('the duration %j is %s ms', (text, ms) => {
  expect(parseDuration(text)).toBe(ms);
});
