import { createHmac } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createLog, type Log } from '../../src/backend-log/index.js';
import { Child } from '../harness/child.js';
import { freePort } from '../harness/free-port.js';
import { eventually } from '../harness/poll.js';
import { type PostgresProcess, startPostgres } from '../harness/postgres.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { KEYS } from './rig.js';

const SECRET = 'of-the-test';
const EVENTS = 60;

const pathOf = (file: string): string => fileURLToPath(new URL(`../../examples/groups/${file}`, import.meta.url));

let redis: RedisProcess;
let postgres: PostgresProcess;
let admin: Redis;
beforeAll(async () => {
  [redis, postgres] = await Promise.all([startRedis({ aof: 'off' }), startPostgres()]);
  admin = new Redis(redis.url);
});
afterAll(async () => {
  admin?.disconnect();
  await Promise.all([redis?.stop(), postgres?.stop()]);
});

type OnFinished = (end: () => Promise<void> | void) => void;

/** Runs an example until the test ends; killed and started anew by `again`. */
async function running(file: string, args: readonly string[], env: Record<string, string>, finished: OnFinished) {
  const start = (): Child =>
    new Child(process.execPath, {
      args: [pathOf(file), ...args],
      env: { ...process.env, REDIS_URL: redis.url, ...env },
    });
  const isUp = (child: Child) =>
    eventually(() => child.lines.length > 0, { withinMs: 30_000, what: `${file} to be up` });
  let child = start();
  finished(async () => void (await child.kill()));
  await isUp(child);
  return {
    again: async () => {
      await child.kill();
      child = start();
      await isUp(child);
    },
  };
}

async function append(log: Log): Promise<void> {
  for (let n = 0; n < EVENTS; n++) await log.append({ event: 'order', data: { n }, tenant: `tenant-${n % 3}` });
}

const pending = async (topic: string, group: string): Promise<number> =>
  ((await admin.xpending(KEYS.partition(topic, 0).stream, `app:${group}`)) as [number])[0];

describe.concurrent('killed and started again', () => {
  test('the webhook sink posts each event, signed, by tenant in order, again if it was refused, and also if it was killed', {
    timeout: 90_000,
  }, async ({ onTestFinished }) => {
    const posts: { readonly id: string; readonly n: number; readonly tenant: string; readonly status: number }[] = [];
    const server = createServer((request, response) => {
      let body = '';
      request.on('data', (chunk) => {
        body += chunk;
      });
      request.on('end', () => {
        const { data, tenant } = JSON.parse(body) as { data: { n: number }; tenant: string };
        const time = request.headers['webhook-timestamp'];
        const proof = createHmac('sha256', SECRET).update(`${time}.${body}`).digest('hex');
        const isSigned = request.headers['webhook-signature'] === `v1=${proof}`;
        const isFirst = !posts.some(({ n }) => n === data.n);
        // the first time, every tenth is refused
        const status = !isSigned ? 401 : isFirst && data.n % 10 === 0 ? 503 : 200;
        posts.push({ id: String(request.headers['webhook-id']), n: data.n, tenant, status });
        response.writeHead(status).end();
      });
    });
    const port = await freePort();
    await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
    onTestFinished(() => void server.close());
    await using log = createLog(redis.url, { topic: 'hooks' });
    const sink = await running(
      'webhook-sink.js',
      [`http://127.0.0.1:${port}/`],
      {
        TOPIC: 'hooks',
        WEBHOOK_SECRET: SECRET,
      },
      onTestFinished,
    );
    const appending = append(log);
    await eventually(() => posts.length > 15, { withinMs: 30_000 });
    await sink.again();
    await appending;
    const good = () => posts.filter(({ status }) => status === 200);
    await eventually(() => new Set(good().map(({ n }) => n)).size === EVENTS, { withinMs: 60_000 });
    for (const tenant of ['tenant-0', 'tenant-1', 'tenant-2']) {
      const first = [
        ...new Set(
          good()
            .filter((post) => post.tenant === tenant)
            .map(({ n }) => n),
        ),
      ];
      expect(first).toEqual([...first].sort((a, b) => a - b));
    }
    expect(new Set(posts.map(({ id, n }) => `${id} ${n}`)).size).toBe(EVENTS);
    await eventually(async () => (await pending('hooks', 'webhooks')) === 0, { withinMs: 20_000 });
  });

  test('the audit writer has each event once, whatever was delivered again', { timeout: 90_000 }, async ({
    onTestFinished,
  }) => {
    const database = await postgres.createDatabase();
    await using log = createLog(redis.url, { topic: 'audited' });
    const writer = await running('audit-writer.js', [], { TOPIC: 'audited', DATABASE_URL: database }, onTestFinished);
    const appending = append(log);
    const written = async () =>
      (await postgres.query('select count(*)::int as n from audit', [], database))[0]?.n as number;
    await eventually(async () => (await written()) > 15, { withinMs: 30_000 });
    await writer.again();
    await appending;
    await eventually(async () => (await written()) >= EVENTS && (await pending('audited', 'audit')) === 0, {
      withinMs: 60_000,
    });
    // delivered again from the beginning: nothing is written twice
    const group = 'app:audit';
    await admin.xgroup('SETID', KEYS.partition('audited', 0).stream, group, '0');
    await log.append({ event: 'order', data: { n: EVENTS }, tenant: 'tenant-0' });
    await eventually(async () => (await written()) > EVENTS && (await pending('audited', 'audit')) === 0, {
      withinMs: 30_000,
    });
    expect(await written()).toBe(EVENTS + 1);
    expect(await postgres.query('select tenant, events::int from totals order by tenant', [], database)).toEqual([
      { tenant: 'tenant-0', events: EVENTS / 3 + 1 },
      { tenant: 'tenant-1', events: EVENTS / 3 },
      { tenant: 'tenant-2', events: EVENTS / 3 },
    ]);
  });
});

test('the README shows the writer as it stands', () => {
  const [, shown = ''] = /```js\n([\s\S]*?)```/.exec(readFileSync(pathOf('README.md'), 'utf8')) ?? [];
  expect(shown.length).toBeGreaterThan(50);
  expect(readFileSync(pathOf('audit-writer.js'), 'utf8')).toContain(shown);
});
