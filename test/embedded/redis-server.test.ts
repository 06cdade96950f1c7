import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile, stat, writeFile } from 'node:fs/promises';
import { createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { FatalError } from '../../src/core/errors.js';
import { silentLogger } from '../../src/core/ports.js';
import { findRedis } from '../../src/embedded/find-redis.js';
import { EmbeddedRedis, type RedisExit } from '../../src/embedded/redis-server.js';
import { clientOf, type Finished, isAlive, parentOf, pidOf, temporaryFolder, until } from './fixtures.js';

async function make(dir: string, finished: Finished, onExit?: (exit: RedisExit) => void): Promise<EmbeddedRedis> {
  const binary = await findRedis({ dir });
  const redis = new EmbeddedRedis({ dir: join(dir, 'redis'), binary, logger: silentLogger, onExit });
  finished(() => redis.stop());
  return redis;
}

const portOf = (url: string): number => Number(new URL(url).port);

/** Listens on `port` as somebody else; `greet` sees each connection. */
async function stranger(port: number, finished: Finished, greet: (socket: Socket) => void): Promise<void> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket.on('error', () => {}));
    greet(socket);
  });
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  finished(async () => {
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
  });
}

async function startedOnce(dir: string, finished: Finished): Promise<string> {
  const redis = await make(dir, finished);
  await redis.start();
  await clientOf(redis.url, finished).set('kept', 'yes');
  await redis.stop();
  return redis.url;
}

// these wait more than they work: the longest comes first
describe.concurrent('an embedded Redis', { timeout: 30_000 }, () => {
  it('ends within its bound when redis-server does not listen to TERM', async ({ onTestFinished: finished }) => {
    const dir = await temporaryFolder(finished);
    const redis = await make(dir, finished);
    await redis.start();
    const pid = await pidOf(clientOf(redis.url, finished));
    process.kill(pid, 'SIGSTOP');
    await redis.stop();
    expect(await isAlive(pid)).toBe(false);
  });

  it('continues its data on the same port at the second start', async ({ onTestFinished: finished }) => {
    const dir = await temporaryFolder(finished);
    const firstUrl = await startedOnce(dir, finished);
    const second = await make(dir, finished);
    await second.start();
    expect(second.url).toBe(firstUrl);
    expect(await clientOf(second.url, finished).get('kept')).toBe('yes');
  });

  it('is private, durable and never evicts', async ({ onTestFinished: finished }) => {
    const dir = await temporaryFolder(finished);
    const redis = await make(dir, finished);
    await redis.start();
    const client = clientOf(redis.url, finished);
    const setting = async (name: string) => ((await client.config('GET', name)) as string[])[1];
    expect(await setting('bind')).toBe('127.0.0.1');
    expect(await setting('appendonly')).toBe('yes');
    expect(await setting('appendfsync')).toBe('everysec');
    expect(await setting('save')).toBe('');
    expect(await setting('maxmemory-policy')).toBe('noeviction');
    await expect(clientOf(redis.url.replace(/:[^:@]+@/, ':wrong-word@'), finished).get('kept')).rejects.toThrow(
      /NOAUTH|WRONGPASS/,
    );
    for (const file of ['redis.conf', 'redis.json'])
      expect((await stat(join(dir, 'redis', file))).mode & 0o777).toBe(0o600);
  });

  it('says in one line why redis-server does not start, and starts once that is mended', async ({
    onTestFinished: finished,
  }) => {
    const dir = await temporaryFolder(finished);
    await startedOnce(dir, finished);
    const manifest = join(dir, 'redis/appendonlydir/appendonly.aof.manifest');
    const whole = await readFile(manifest);
    await writeFile(manifest, 'damaged\n');
    const redis = await make(dir, finished);
    const failure = await redis.start().catch((error) => error);
    expect(failure).toBeInstanceOf(FatalError);
    expect(failure.message).toMatch(/^redis-server did not start: .+$/);
    await writeFile(manifest, whole);
    await redis.start();
    expect(await clientOf(redis.url, finished).get('kept')).toBe('yes');
  });

  it('takes another port when the remembered one is taken', async ({ onTestFinished: finished }) => {
    const dir = await temporaryFolder(finished);
    const firstUrl = await startedOnce(dir, finished);
    await stranger(portOf(firstUrl), finished, (socket) => socket.end('220 ready\r\n'));
    const second = await make(dir, finished);
    await second.start();
    expect(portOf(second.url)).not.toBe(portOf(firstUrl));
    expect(await clientOf(second.url, finished).get('kept')).toBe('yes');
  });

  it('does not hang on a silent stranger on the remembered port', async ({ onTestFinished: finished }) => {
    const dir = await temporaryFolder(finished);
    const firstUrl = await startedOnce(dir, finished);
    await stranger(portOf(firstUrl), finished, () => {});
    const second = await make(dir, finished);
    const startedAt = Date.now();
    await second.start();
    expect(Date.now() - startedAt).toBeLessThan(8000);
    expect(await clientOf(second.url, finished).get('kept')).toBe('yes');
  });

  it('ends a redis-server that a former start left, and has its writes', async ({ onTestFinished: finished }) => {
    const dir = await temporaryFolder(finished);
    const url = await startedOnce(dir, finished);
    const { file } = await findRedis({ dir });
    const leftover = spawn(file, [join(dir, 'redis/redis.conf')], { stdio: 'ignore' });
    finished(() => void leftover.kill('SIGKILL'));
    const exit = once(leftover, 'exit');
    await clientOf(url, finished).set('late', 'too');
    const second = await make(dir, finished);
    await second.start();
    await exit;
    expect(second.url).toBe(url);
    expect(await clientOf(second.url, finished).get('late')).toBe('too');
  });

  it('comes back with its data on the same port when redis-server is killed', async ({ onTestFinished: finished }) => {
    const dir = await temporaryFolder(finished);
    const exits: RedisExit[] = [];
    const redis = await make(dir, finished, (exit) => exits.push(exit));
    await redis.start();
    const client = clientOf(redis.url, finished);
    await client.set('kept', 'yes');
    const pid = await pidOf(client);
    process.kill(pid, 'SIGKILL');
    await until(5000, () => exits.length === 1 && client.status === 'ready');
    expect(await client.get('kept')).toBe('yes');
    expect(await pidOf(client)).not.toBe(pid);
    expect(exits).toEqual([{ code: 128 + 9, signal: null }]);
  });

  it('comes back when its watchdog is killed', async ({ onTestFinished: finished }) => {
    const dir = await temporaryFolder(finished);
    const exits: RedisExit[] = [];
    const redis = await make(dir, finished, (exit) => exits.push(exit));
    await redis.start();
    const client = clientOf(redis.url, finished);
    await client.set('kept', 'yes');
    const pid = await pidOf(client);
    process.kill(await parentOf(pid), 'SIGKILL');
    await until(5000, async () => exits.length === 1 && (await pidOf(client)) !== pid);
    expect(await client.get('kept')).toBe('yes');
    expect(await isAlive(pid)).toBe(false);
  });

  it('is gone when stop resolves, also a stop during the start', async ({ onTestFinished: finished }) => {
    const dir = await temporaryFolder(finished);
    const redis = await make(dir, finished);
    await redis.start();
    const pid = await pidOf(clientOf(redis.url, finished));
    await redis.stop();
    expect(await isAlive(pid)).toBe(false);

    const hasty = await make(dir, finished);
    const start = hasty.start();
    await hasty.stop();
    await expect(start).rejects.toThrow('stopped while it started');
  });
});
