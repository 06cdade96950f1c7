import { EventEmitter } from 'node:events';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { pair, startCluster } from './rig.js';

let redis: RedisProcess;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
});
afterAll(() => redis?.stop());

const RECOVERY = { connectionStateRecovery: { maxDisconnectionDuration: 60_000 } };
const numbers = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

describe.each([
  ['without recovery', {}],
  ['with recovery', RECOVERY],
])('%s', (_name, settings) => {
  test('a client on HTTP long-polling gets the same in the same order, binary too', async () => {
    await using cluster = await startCluster(2, settings, redis);
    const [a, b] = pair(cluster);
    const client = await b.member('room', { transports: ['polling'] });
    for (const n of numbers(200)) a.io.to('room').emit('e', n, n % 10 === 0 ? Buffer.from([n]) : 'text');
    await client.receives(numbers(200));
    expect(client.got[100]?.args[1]).toEqual(Buffer.from([100]));
    expect(client.got[101]?.args[1]).toBe('text');
  });

  test('a client that upgrades from polling in the middle of traffic misses nothing', async () => {
    await using cluster = await startCluster(2, settings, redis);
    const [a, b] = pair(cluster);
    let isOver = false;
    let sent = 0;
    const publishing = (async () => {
      while (!isOver) {
        for (let n = 0; n < 5; n++) a.io.to('room').emit('e', sent++);
        await new Promise(setImmediate);
      }
    })();
    const clients = await Promise.all(numbers(5).map(() => b.member('room', { transports: ['polling', 'websocket'] })));
    await eventually(() => clients.every(({ socket }) => socket.io.engine.transport.name === 'websocket'));
    const upgradedAt = sent;
    await eventually(() => sent > upgradedAt + 200);
    isOver = true;
    await publishing;
    for (const client of clients) {
      await eventually(() => client.values().at(-1) === sent - 1);
      const first = client.values()[0] as number;
      expect(client.values()).toEqual(numbers(sent - first).map((n) => first + n));
      expect(first).toBeLessThan(upgradedAt);
    }
  });

  test('a server that compresses frames sends the same', async () => {
    const deflate = { ...settings, perMessageDeflate: { threshold: 0 } };
    await using cluster = await startCluster(2, deflate, redis);
    const [a, b] = pair(cluster);
    const client = await b.member('room', { perMessageDeflate: { threshold: 0 } });
    const { transport } = b.socketOf(client).conn as unknown as { transport: { socket: { extensions: string } } };
    expect(transport.socket.extensions).toBe('permessage-deflate');
    for (const n of numbers(100)) {
      a.io.to('room').emit('e', n, 'text '.repeat(50));
      if (n % 10 === 0) b.socketOf(client).emit('own', n);
    }
    await client.receives(numbers(100));
    await eventually(() => client.values('own').length === 10);
  });

  test("a server's own encoder writes every packet, and its clients' decoder reads it", async () => {
    await using cluster = await startCluster(2, { ...settings, parser: REVERSED }, redis);
    const [a, b] = pair(cluster);
    const client = await b.member('room', { parser: REVERSED, namespace: '/' });
    for (const n of numbers(30)) a.io.to('room').emit('e', n, { text: 'é', list: [n] });
    await client.receives(numbers(30));
    expect(client.got[7]?.args[1]).toEqual({ text: 'é', list: [7] });
    expect(REVERSED.decoded).toBeGreaterThan(30);
  });
});

/** A parser of packets as somebody may write one: JSON, its characters in reverse. */
class ReversedEncoder {
  encode(packet: object): string[] {
    return [[...JSON.stringify(packet)].reverse().join('')];
  }
}

class ReversedDecoder extends EventEmitter {
  add(text: string): void {
    REVERSED.decoded++;
    this.emit('decoded', JSON.parse([...text].reverse().join('')));
  }
  destroy(): void {}
}

const REVERSED = { Encoder: ReversedEncoder, Decoder: ReversedDecoder, decoded: 0 };
