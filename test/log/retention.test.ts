import { setTimeout as pass } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { type AppendResult, LogAccess } from '../../src/log/index.js';
import { Keys } from '../../src/redis/keys.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { expectTrueAccounts, fill, type Peak } from './retention.js';
import { adminOf, KEYS, startPod } from './rig.js';

const MB = 1024 * 1024;

let redis: RedisProcess;
let admin: ReturnType<typeof adminOf>;
beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  admin = adminOf(redis.url);
});
afterAll(async () => {
  admin.disconnect();
  await redis.stop();
});
beforeEach(() => admin.flushall());

const offsets = async (): Promise<{ first: number; offset: number; entries: number }> => {
  const [first, offset] = (await admin.hmget(KEYS.meta, 'first', 'offset')).map(Number) as [number, number];
  return { first, offset, entries: await admin.xlen(KEYS.stream) };
};

describe('bounds', () => {
  it('50,000 small entries, then 1,000 of 200 kB: entries and memory stay within the caps', async () => {
    await using pod = await startPod('a', {
      url: redis.url,
      maxEntries: 10_000,
      maxBytes: 16 * MB,
      trimMs: 200,
      keepMs: 0,
    });
    const peak: Peak = { entries: 0, bytes: 0 };
    await fill(pod, admin, 50_000, 100, peak);
    expect(peak.entries).toBeLessThanOrEqual(20_000);
    await fill(pod, admin, 1000, 200_000, peak);
    expect(peak.bytes).toBeLessThan(2 * 1.2 * 16 * MB);
    await eventually(async () => expect(await admin.memory('USAGE', KEYS.stream)).toBeLessThan(1.4 * 16 * MB));
    expect((await offsets()).entries).toBeLessThanOrEqual(10_000);
    await expectTrueAccounts(admin);
    // and what it read or was told of is all there ever was
    const lost = (): number => pod.gaps.reduce((sum, { from, to }) => sum + to.offset - from.offset + 1, 0);
    await eventually(() => expect(pod.handled.length + lost()).toBe(51_000), { withinMs: 20_000 });
  });

  it('the hard caps hold without any trim, and what a group had not read is counted for it', async () => {
    const caps = { url: redis.url, maxEntries: 1600, maxBytes: 64 * MB };
    const idle = await startPod('idle', caps);
    await idle.log.stop();
    await using pod = await startPod('a', caps);
    const peak: Peak = { entries: 0, bytes: 0 };
    await fill(pod, admin, 10_000, 50, peak);
    expect(peak.entries).toBeLessThanOrEqual(3200);
    const { first, entries, offset } = await offsets();
    expect(entries).toBe(offset - first + 1);
    expect(Number(await admin.hget(KEYS.meta, 'unread:pod:idle'))).toBe(first - 1);
    await using back = await startPod('idle', caps);
    await eventually(() => expect(back.handled.length).toBe(entries));
    expect(back.gaps).toMatchObject([{ reason: 'trimmed', from: { offset: 1 }, to: { offset: first - 1 } }]);
  });

  it('meta that was deleted does not leave entries behind that nothing counts', async () => {
    await using pod = await startPod('a', { url: redis.url, maxEntries: 1000, trimMs: 100, keepMs: 0 });
    const peak: Peak = { entries: 0, bytes: 0 };
    await fill(pod, admin, 900, 1000, peak);
    await admin.del(KEYS.meta);
    await fill(pod, admin, 3000, 1000, peak);
    await eventually(async () => expect((await offsets()).entries).toBeLessThanOrEqual(1000));
    await expectTrueAccounts(admin);
  });
});

describe('the soft limits', () => {
  it('cut nothing that a living group has not read', async () => {
    const caps = { url: redis.url, maxEntries: 1600, trimMs: 50, keepMs: 0 };
    const slow = await startPod('slow', caps);
    await slow.log.stop();
    await using pod = await startPod('a', caps);
    await fill(pod, admin, 2500, 50, { entries: 0, bytes: 0 });
    const trimmedAt = await admin.hget(KEYS.meta, 'trimmedAt');
    await eventually(async () => expect(await admin.hget(KEYS.meta, 'trimmedAt')).not.toBe(trimmedAt));
    expect((await offsets()).first).toBe(1);
    // control: once it has read, they do
    await using again = await startPod('slow', caps);
    await eventually(() => expect(again.handled.length).toBe(2500));
    await eventually(async () => expect((await offsets()).entries).toBeLessThanOrEqual(1600));
    expect(again.gaps).toEqual([]);
  });

  it('cut nothing younger than the recovery window', async () => {
    await using pod = await startPod('a', { url: redis.url, maxEntries: 1600, trimMs: 50, keepMs: 3000 });
    await fill(pod, admin, 2500, 50, { entries: 0, bytes: 0 });
    const filledAt = performance.now();
    const trimmedAt = await admin.hget(KEYS.meta, 'trimmedAt');
    await eventually(async () => expect(await admin.hget(KEYS.meta, 'trimmedAt')).not.toBe(trimmedAt));
    if (performance.now() - filledAt < 2000) expect((await offsets()).first).toBe(1);
    await eventually(async () => expect((await offsets()).entries).toBeLessThanOrEqual(1600), { withinMs: 10_000 });
  });

  it('age cuts a trickle, too', async () => {
    await using pod = await startPod('a', { url: redis.url, maxAgeMs: 1000, trimMs: 50, keepMs: 0 });
    await pod.append('one');
    await pod.append('two');
    await eventually(async () => expect((await offsets()).entries).toBe(0), { withinMs: 10_000 });
    expect((await pod.append('three')).position.offset).toBe(3);
    await eventually(() => expect(pod.ids).toEqual(['one', 'two', 'three']));
    expect([pod.gaps, pod.turns]).toEqual([[], []]);
  });
});

describe('silent pods', () => {
  it('lose their group and their place, those that never committed too; what they had not read is counted', async () => {
    const options = { url: redis.url, trimMs: 50, reapMs: 1500 };
    await using a = await startPod('a', options);
    for (let n = 0; n < 30; n++) {
      const pod = await startPod(`gone-${n}`, { ...options, trimMs: 60_000 });
      await pod.log.stop();
    }
    await admin.xgroup('CREATE', KEYS.stream, 'pod:never', '0');
    await admin.xgroup('CREATE', KEYS.stream, 'app:billing', '0');
    await Promise.all(Array.from({ length: 10 }, (_, n) => a.append(`e-${n}`)));
    const groups = async (): Promise<string[]> =>
      ((await admin.xinfo('GROUPS', KEYS.stream)) as string[][]).map((fields) => fields[1] as string).sort();
    await eventually(async () => expect(await groups()).toEqual(['app:billing', 'pod:a']), { withinMs: 15_000 });
    await eventually(async () => expect(await admin.hkeys(KEYS.offsets)).toEqual(['a']));
    await eventually(() => expect(a.counts.of('log_groups_reaped_total')).toBe(31));
    expect(a.counts.of('log_trimmed_unread_total')).toBe(31 * 10);
    // a living one that has nothing to read is not silent
    await pass(2000);
    expect(await groups()).toContain('pod:a');
    expect(a.isFenced).toBe(false);
  });

  it('a record that a trim wrote for a group without one fences nobody', async () => {
    await using a = await startPod('a', { url: redis.url });
    const { epoch } = (await a.append('e')).position;
    await admin.hset(KEYS.offsets, 'a', `0-0 0 ${epoch} - ${Date.now()}`);
    await a.append('f');
    await eventually(async () => expect(await admin.hget(KEYS.offsets, 'a')).toContain(' 2 '));
    expect(a.isFenced).toBe(false);
  });

  it('a pod that was reaped while it was paused takes its place again', async () => {
    const options = { url: redis.url, trimMs: 50, reapMs: 1000 };
    await using a = await startPod('a', options);
    await using b = await startPod('b', { ...options, trimMs: 60_000 });
    await a.append('before');
    await eventually(() => expect(b.ids).toEqual(['before']));
    await admin.hdel(KEYS.offsets, 'b');
    await admin.xgroup('DESTROY', KEYS.stream, 'pod:b');
    await a.append('after');
    await eventually(() => expect(b.ids).toEqual(['before', 'after']));
    await eventually(async () => expect(await admin.hexists(KEYS.offsets, 'b')).toBe(1));
    expect(b.isFenced).toBe(false);
  });
});

describe('lag', () => {
  const tools = () => new LogAccess(redis.url, new Keys('hf:'), { maxEntries: 1000, maxBytes: MB, idWindowMs: 1000 });

  it('is the difference of offsets, right after trims and deletions, where Redis’s own is not', async () => {
    const b = await startPod('b', { url: redis.url });
    await b.log.stop();
    await using a = await startPod('a', { url: redis.url });
    const positions = await Promise.all(Array.from({ length: 5 }, (_, n) => a.append(`e-${n}`)));
    await eventually(async () => expect(await admin.hget(KEYS.offsets, 'a')).toMatch(/-5 5 /));
    const { ms, offset } = (positions[3] as AppendResult).position;
    await admin.xdel(KEYS.stream, `${ms}-${offset}`);
    await using access = tools();
    await access.whenUp(2000);
    const rows = await access.groups('events');
    expect(rows.map(({ group, lag }) => [group, lag])).toEqual([
      ['pod:a', 0],
      ['pod:b', 5],
    ]);
  });

  it('a group of somebody else’s does not borrow the place of the pod whose name it has', async () => {
    await using a = await startPod('billing', { url: redis.url });
    await a.append('e');
    await admin.xgroup('CREATE', KEYS.stream, 'app:billing', '0');
    await eventually(async () => expect(await admin.hexists(KEYS.offsets, 'billing')).toBe(1));
    await using access = tools();
    await access.whenUp(2000);
    const rows = await access.groups('events');
    expect(rows.find(({ group }) => group === 'app:billing')?.consumer).toBeUndefined();
    expect(rows.find(({ group }) => group === 'pod:billing')?.consumer).toBeDefined();
  });
});
