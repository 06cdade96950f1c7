import { createServer } from 'node:http';
import { Redis } from 'ioredis';
import { Server } from 'socket.io';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { attachRpc, createRpcClient, createRpcWorker } from '../../src/attach/index.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';

let redis: RedisProcess;
let admin: Redis;
/** May do all but what a test takes from it. */
let app: Redis;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  admin = new Redis(redis.url);
  await allow('+@all');
  app = new Redis({ port: redis.port, username: 'app', password: 'x' });
});

beforeEach(() => allow('+@all'));

afterAll(async () => {
  app?.disconnect();
  admin?.disconnect();
  await redis?.stop();
});

async function allow(...rules: string[]): Promise<void> {
  await admin.call('ACL', 'SETUSER', 'app', 'on', '>x', '~*', '&*', ...rules);
}

/** Its connections, without the one that was handed in. */
async function connections(): Promise<number> {
  const list = String(await admin.client('LIST'));
  return list.split('\n').filter((line) => line.includes('name=holdfast')).length;
}

function logger(): { warnings: unknown[]; log: Record<'debug' | 'info' | 'warn' | 'error', (fields: object) => void> } {
  const warnings: unknown[] = [];
  const nothing = (): void => {};
  return {
    warnings,
    log: {
      debug: nothing,
      info: nothing,
      warn: (fields) => void warnings.push((fields as { event: string }).event),
      error: nothing,
    },
  };
}

test.each([
  ['the scripts', '-script'],
  ['the lease', '-evalsha', '-eval'],
])('a start that Redis refuses (%s) is made again until it is let, and said once', async (_, ...rules) => {
  await allow(...rules);
  const { warnings, log } = logger();
  await using worker = createRpcWorker(app, { user: 'late', methods: { same: (params) => params }, logger: log });
  await eventually(() => expect(warnings).toEqual(['rpc_waits']), { withinMs: 10_000 });
  await allow('+@all');
  await worker.ready;
  await using client = createRpcClient(app);
  expect(await client.call('late', 'same', 1)).toBe(1);
  expect(warnings).toEqual(['rpc_waits']);
});

test.each([
  ['the scripts', '-script'],
  ['the lease', '-evalsha', '-eval'],
])('what is closed after a start that failed (%s) leaves no connection', async (_, ...rules) => {
  await allow(...rules);
  const { warnings, log } = logger();
  const io = new Server(createServer());
  const client = createRpcClient(app, { logger: log });
  const worker = createRpcWorker(app, { user: 'u', methods: {}, logger: log });
  const attached = attachRpc(io, app, { identify: () => undefined, logger: log });
  await eventually(() => expect(warnings).toHaveLength(3), { withinMs: 10_000 });
  expect(await connections()).toBeGreaterThan(0);
  await Promise.all([client.close(), worker.close(), attached.close(0)]);
  await expect(worker.ready).rejects.toMatchObject({ code: 'unavailable' });
  await eventually(async () => (await connections()) === 0);
  await io.close();
});
