import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { join, killInTurn } from './kill-in-turn.js';
import { startCluster, startServerProcess, streamName, TestClient } from './rig.js';

let redis: RedisProcess;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
});
afterAll(() => redis?.stop());

// the long form kills 22 times: sigkill.long.test.ts
describe.concurrent('SIGKILL', () => {
  test('of a server under traffic, 6 times in turn: nothing lost, doubled or out of order', () => killInTurn(redis, 6));

  test('keeps rooms that were joined and left, and data, as they were', async () => {
    const name = streamName();
    await using first = await startServerProcess(redis.url, name);
    await using second = await startServerProcess(redis.url, name);
    await using client = new TestClient(first.url, { auth: { rooms: ['a', 'b'] } });
    await client.connected();
    await join(client, 'c');
    await client.socket.emitWithAck('leave', 'a');
    // saved by the sweep, since nothing else changes
    await client.socket.emitWithAck('set', { step: 7, bytes: Buffer.from([1]) });
    const { _pid: pid } = client.socket as unknown as { _pid: string };
    const seen = new Redis(redis.url);
    await eventually(async () => {
      const [key] = await seen.keys(`*${name}*resume:{${pid}}`);
      return key !== undefined && ((await seen.get(key)) ?? '').includes('\\"step\\":7');
    });
    seen.disconnect();
    client.moveTo(second.url);
    const { id } = client.socket;
    await first.kill();
    await client.connected(2);
    expect(client.connects).toEqual([false, true]);
    const { data, rooms } = await client.socket.emitWithAck('get');
    expect(data).toEqual({ step: 7, bytes: Buffer.from([1]) });
    expect(rooms.toSorted()).toEqual(['b', 'c', id].toSorted());
  });
});

describe.concurrent('membership', () => {
  test('a SIGKILLed server costs questions its lease and no time-out; one that came later is asked', async () => {
    await using cluster = await startCluster(1, { options: { requestsTimeout: 30_000 } }, redis);
    const [asking] = cluster.servers;
    if (!asking) throw new Error('no server');
    const client = await asking.client();
    client.socket.on('ask', (done) => done('here'));
    await using victim = await startServerProcess(redis.url, cluster.name, { RECOVERY_MS: '0' });
    await using there = new TestClient(victim.url);
    await there.connected();
    there.socket.on('ask', (done) => done('there'));
    expect(await asking.io.fetchSockets()).toHaveLength(2);
    expect(await asking.io.serverSideEmitWithAck('whoami')).toHaveLength(1);
    expect((await asking.io.timeout(5000).emitWithAck('ask')).toSorted()).toEqual(['here', 'there']);

    there.socket.io.reconnection(false);
    victim.pause();
    const startedAt = performance.now();
    const questions = [
      asking.io.fetchSockets().then((sockets) => sockets.length),
      asking.io.serverSideEmitWithAck('whoami').then((answers) => answers.length),
      asking.io.timeout(30_000).emitWithAck('ask'),
    ];
    await victim.kill();
    expect(await Promise.all(questions)).toEqual([1, 0, ['here']]);
    expect(performance.now() - startedAt).toBeLessThan(3000 + 500 + 1500);

    await using later = await startServerProcess(redis.url, cluster.name, { RECOVERY_MS: '0' });
    await using newcomer = new TestClient(later.url);
    await newcomer.connected();
    expect(await asking.io.fetchSockets()).toHaveLength(2);
    expect(await asking.io.serverSideEmitWithAck('whoami')).toHaveLength(1);
  });

  test('a server that left is no longer asked, at once', async () => {
    await using cluster = await startCluster(2, {}, redis);
    const [stays, leaves] = cluster.servers;
    await leaves?.io.close();
    const startedAt = performance.now();
    expect(await stays?.io.fetchSockets()).toEqual([]);
    expect(await stays?.io.of('/').adapter.serverCount()).toBe(1);
    // who is waited for costs at least a lease
    expect(performance.now() - startedAt).toBeLessThan(3000);
  });
});
