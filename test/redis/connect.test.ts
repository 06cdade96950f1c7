import { setTimeout as pass } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { FatalError } from '../../src/core/errors.js';
import { Connection, replyCode } from '../../src/redis/connect.js';
import { Keys } from '../../src/redis/keys.js';
import { untilServing } from '../../src/redis/serving.js';
import { freePort } from '../harness/free-port.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy, type TcpProxy } from '../harness/tcp-proxy.js';

let redis: RedisProcess;
let proxy: TcpProxy;
const made: Connection[] = [];
beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  proxy = await startTcpProxy(redis.port);
});
afterAll(async () => {
  await proxy.stop();
  await redis.stop();
});
afterEach(() => {
  for (const connection of made.splice(0)) connection.close();
});

function connect(options: { silenceMs?: number; opensLater?: boolean; port?: number } = {}): Connection {
  const { port = proxy.port, ...rest } = options;
  const connection = new Connection({ url: `redis://127.0.0.1:${port}`, name: 'test', ...rest });
  made.push(connection);
  return connection;
}

const up = async (connection: Connection): Promise<void> => {
  await eventually(() => connection.whenUp(500), { withinMs: 10_000, what: 'the connection to be up' });
};

describe('a connection', () => {
  it('refuses at once while it is down, and does not execute later what it refused', async () => {
    await using own = await startRedis({ aof: 'off' });
    const connection = connect({ port: own.port });
    await up(connection);
    await own.kill();
    await eventually(() => !connection.isUp);
    await expect(connection.redis.set('late', '1')).rejects.toThrow();
    await own.start();
    await up(connection);
    expect(await connection.redis.get('late')).toBeNull();
  });

  it('a command that was under way when the connection broke is rejected, not sent again', async () => {
    const connection = connect();
    await up(connection);
    await connection.redis.del('n');
    proxy.dropReplies(true);
    const broken = connection.redis.incr('n');
    broken.catch(() => {});
    await pass(100);
    proxy.dropReplies(false);
    proxy.rst();
    await expect(broken).rejects.toThrow();
    await up(connection);
    expect(await connection.redis.get('n')).toBe('1');
  });

  it('one that falls silent while a command waits is replaced', async () => {
    const connection = connect({ silenceMs: 500 });
    await up(connection);
    const { generation } = connection;
    proxy.dropReplies(true);
    const ping = connection.redis.ping();
    await expect(ping).rejects.toThrow();
    proxy.dropReplies(false);
    await up(connection);
    expect(connection.generation).toBeGreaterThan(generation);
  });

  it('a handshake that nobody answers is given up', async () => {
    proxy.blackhole(true);
    const connection = connect();
    expect(await connection.whenUp(1500)).toBe(false);
    proxy.rst();
    proxy.blackhole(false);
    await up(connection);
  });

  it('a reset counts as down at once, and comes back', async () => {
    const connection = connect();
    await up(connection);
    let downs = 0;
    connection.on('down', () => downs++);
    connection.reset();
    expect([connection.isUp, downs]).toEqual([false, 1]);
    await up(connection);
    expect([await connection.redis.ping(), downs]).toEqual(['PONG', 1]);
  });

  it('a rebuilt one works, and the old one’s end does not take it down', async () => {
    const connection = connect();
    await up(connection);
    for (let round = 0; round < 5; round++) {
      connection.rebuild();
      await up(connection);
    }
    await pass(300);
    expect([connection.isUp, await connection.redis.ping()]).toEqual([true, 'PONG']);
    await eventually(() => proxy.connections === 1, { what: 'the old ones to be closed' });
  });

  it('opens later, closes, and opens again', async () => {
    const connection = connect({ opensLater: true });
    await pass(50);
    expect(connection.isUp).toBe(false);
    connection.open();
    await up(connection);
    connection.close();
    expect([connection.isUp, await connection.whenUp(5000)]).toEqual([false, false]);
    connection.open();
    await up(connection);
    expect(await connection.redis.ping()).toBe('PONG');
  });

  it('waiting for it ends when it is closed', async () => {
    const connection = connect({ port: await freePort() });
    const startedAt = performance.now();
    const waiting = connection.whenUp(10_000);
    connection.close();
    expect(await waiting).toBe(false);
    expect(performance.now() - startedAt).toBeLessThan(5000);
  });

  it('names the code of what Redis answers, and nothing for the wire', async () => {
    const connection = connect();
    await up(connection);
    await connection.redis.set('text', 'x');
    const codeOf = (asked: Promise<unknown>): Promise<string> => asked.then(() => 'none', replyCode);
    expect(await codeOf(connection.redis.lpush('text', 'y'))).toBe('WRONGTYPE');
    expect(await codeOf(connection.redis.xreadgroup('GROUP', 'g', 'c', 'STREAMS', 'no', '>'))).toBe('NOGROUP');
    connection.close();
    expect(await codeOf(connection.redis.ping())).toBe('');
  });
});

describe('until it serves', () => {
  const serving = (url: string, extra: Partial<Parameters<typeof untilServing>[0]> = {}) =>
    untilServing({
      url,
      probeKey: 'probe',
      withinMs: 1000,
      onRefused: () => {},
      signal: new AbortController().signal,
      ...extra,
    });

  it('tells what it is', async () => {
    expect(await serving(redis.url)).toMatchObject({ evictionPolicy: 'noeviction', streamNodeMaxEntries: 100 });
  });

  it('gives up in one line when nobody answers', async () => {
    await expect(serving(`redis://127.0.0.1:${await freePort()}`)).rejects.toBeInstanceOf(FatalError);
  });

  it('waits for one that refuses writes, and says so once', async () => {
    const admin = connect({ port: redis.port });
    await up(admin);
    await admin.redis.config('SET', 'maxmemory', '1');
    const codes: string[] = [];
    const waiting = serving(redis.url, { onRefused: (code) => codes.push(code) });
    await pass(1500); // longer than it waits for one that is silent
    await admin.redis.config('SET', 'maxmemory', '0');
    await waiting;
    expect(codes).toEqual(['OOM']);
  });

  it('a wrong password is fatal at once', async () => {
    await using own = await startRedis({ aof: 'off', config: { requirepass: 'right' } });
    const startedAt = performance.now();
    await expect(serving(`redis://:wrong@127.0.0.1:${own.port}`, { withinMs: 20_000 })).rejects.toBeInstanceOf(
      FatalError,
    );
    expect(performance.now() - startedAt).toBeLessThan(10_000);
  });
});

describe('keys', () => {
  it('all of a partition share one hash tag, whatever the topic is called', () => {
    for (const topic of ['events', 'a}b{c', '{x}', 'ü:%', '']) {
      const keys = new Keys('hf:').partition(topic, 3);
      const all = [keys.stream, keys.meta, keys.segments, keys.producers, keys.offsets, ...keys.ids];
      const tags = all.map((key) => /\{(.*?)\}/.exec(key)?.[1]);
      expect(new Set(tags).size).toBe(1);
      expect(tags[0]).not.toBe('');
      expect(new Set(all).size).toBe(all.length);
    }
  });
});
