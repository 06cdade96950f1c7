import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { type Member, startMember, TestDaemon } from './rig.js';

let redis: RedisProcess;
let a: Member;
let b: Member;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  [a, b] = await Promise.all([startMember(redis.url), startMember(redis.url)]);
});

afterAll(async () => {
  await Promise.all([a?.[Symbol.asyncDispose](), b?.[Symbol.asyncDispose]()]);
  await redis?.[Symbol.asyncDispose]();
});

describe('a call', () => {
  it.each(['another process', 'the same process'])('is answered by a daemon of %s', async (where) => {
    const daemon = await (where === 'another process' ? b : a).serve(new TestDaemon(where), 'echo');
    expect(await a.call(where, 'echo', { text: 'hello' })).toEqual({ ok: true, result: { text: 'hello' } });
    expect(daemon.requests).toMatchObject([{ method: 'echo', params: { text: 'hello' }, attempt: 1 }]);
  });
  it('storm', async () => {
    await b.serve(new TestDaemon('storm'), 'echo');
    const t = performance.now();
    const all = await Promise.all(Array.from({ length: 900 }, (_, i) => a.call('storm', 'echo', i)));
    console.log('900 calls', performance.now() - t);
    expect(all.filter((x) => x.ok).length).toBe(900);
    const lat = [];
    for (let i = 0; i < 500; i++) {
      const s = performance.now();
      await a.call('storm', 'echo', i);
      lat.push(performance.now() - s);
    }
    lat.sort((x, y) => x - y);
    console.log('p50', lat[250], 'p99', lat[495]);
  });
});
