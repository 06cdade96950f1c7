import { setTimeout as pass } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { FatalError } from '../../src/core/errors.js';
import { Keys } from '../../src/redis/keys.js';
import type { Position } from '../../src/wire/position.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { adminOf, bodyOf, KEYS, Ledger, startPod, TestPod } from './rig.js';

let redis: RedisProcess;
let admin: ReturnType<typeof adminOf>;
beforeAll(async () => {
  redis = await startRedis();
  admin = adminOf(redis.url);
});
afterAll(async () => {
  admin.disconnect();
  await redis.stop();
});
beforeEach(() => admin.flushall());

/** A field of the pod's group, as Redis tells it. */
async function groupOf(pod: string): Promise<Record<string, unknown> | undefined> {
  const groups = (await admin.xinfo('GROUPS', KEYS.stream)) as unknown[][];
  const records = groups.map((flat) =>
    Object.fromEntries(flat.flatMap((name, at) => (at % 2 === 0 ? [[name, flat[at + 1]]] : []))),
  );
  return records.find(({ name }) => name === `pod:${pod}`);
}

const numbered = (from: number, to: number): string[] =>
  Array.from({ length: to - from + 1 }, (_, n) => `e-${from + n}`);

describe('start', () => {
  it('a first start reads from the tail, and what comes after it', async () => {
    await using a = await startPod('a', { url: redis.url });
    await Promise.all(numbered(1, 10).map((id) => a.append(id)));
    await using b = await startPod('b', { url: redis.url });
    await Promise.all(numbered(11, 20).map((id) => a.append(id)));
    await eventually(() => expect(b.ids).toEqual(numbered(11, 20)));
    await eventually(() => expect(a.ids).toEqual(numbered(1, 20)));
  });

  it('a restart goes on where the pod stood, and its lag in Redis falls from 5,000 to 0', async () => {
    await using a = await startPod('a', { url: redis.url, budgetMs: 15_000 });
    const first = await startPod('b', { url: redis.url });
    await Promise.all(numbered(1, 5).map((id) => a.append(id)));
    await eventually(() => expect(first.ids.length).toBe(5));
    await first.log.stop();
    await Promise.all(numbered(6, 5005).map((id) => a.append(id)));
    expect((await groupOf('b'))?.lag).toBe(5000);
    await using again = await startPod('b', { url: redis.url });
    await eventually(async () => expect((await groupOf('b'))?.lag).toBe(0), { withinMs: 10_000 });
    await eventually(() => expect(again.ids).toEqual(numbered(6, 5005)));
  });

  it('a killed pod’s successor begins at the last commit, a second process of a living one fences it', async () => {
    await using a = await startPod('a', { url: redis.url });
    const older = await startPod('b', { url: redis.url });
    await Promise.all(numbered(1, 50).map((id) => a.append(id)));
    await eventually(async () => expect(await admin.hget(KEYS.offsets, 'b')).toMatch(/^\d+-50 50 /));
    // nobody stops the older one: it stands for a process that was paused
    await using newer = await startPod('b', { url: redis.url });
    await eventually(() => older.isFenced, { what: 'the older process to notice' });
    const had = older.handled.length;
    await Promise.all(numbered(51, 60).map((id) => a.append(id)));
    await eventually(() => expect(newer.ids).toEqual(numbered(51, 60)));
    await older.log.stop();
    expect(older.handled.length).toBe(had);
    expect(newer.isFenced).toBe(false);
    await eventually(async () => expect(await admin.hget(KEYS.offsets, 'b')).toContain('-60 60 '));
  });

  it('pods that disagree about partitions refuse to start', async () => {
    await using a = await startPod('a', { url: redis.url, partitions: 2 });
    expect(a.log.partitionCount).toBe(2);
    await expect(new TestPod('b', { url: redis.url, partitions: 3 }).start()).rejects.toThrow(FatalError);
    await using c = await startPod('c', { url: redis.url });
    expect(c.log.partitionCount).toBe(2);
  });

  it.each(['many', '0', '1.5', '100000'])('a topic that has %s partitions ends the start', async (count) => {
    const key = new Keys('hf:').partitionCount('events');
    await admin.set(key, count);
    await expect(new TestPod('a', { url: redis.url }).start()).rejects.toThrow(key);
  });

  it('in steady state 99% come by group reads', async () => {
    await using a = await startPod('a', { url: redis.url });
    await eventually(async () => (await groupOf('a')) !== undefined);
    await a.append('first');
    const before = { group: a.counts.of('log_reads_total{group}'), plain: a.counts.of('log_reads_total{plain}') };
    for (let n = 0; n < 500; n++) await a.append(`e-${n}`);
    await eventually(() => expect(a.ids.length).toBe(501));
    const group = a.counts.of('log_reads_total{group}') - before.group;
    const plain = a.counts.of('log_reads_total{plain}') - before.plain;
    expect(group / (group + plain)).toBeGreaterThanOrEqual(0.99);
  });
});

describe('strangers', () => {
  it('their entries are skipped and counted wherever they stand; ours stay dense, each comes once', async () => {
    await using a = await startPod('a', { url: redis.url });
    await using b = await startPod('b', { url: redis.url });
    const ledger = new Ledger(admin);
    const add = (id: string, ...fields: string[]) => admin.xadd(KEYS.stream, id, ...fields);
    const far = 9_999_999_999_999;
    const strangers: (() => Promise<unknown>)[] = [
      () => add('*', 'some', 'thing'),
      () => add('*', 'd', 'no line feed'),
      () => add('*', 'd', 'no json\n[]'),
      () => add('*', 'd', '{"v":"x"}\n[]'),
      () => add('*', 'd', 'bm90IGpzb24=\nbm90IGpzb24='),
      () => add('*', 'd', bodyOf('valid envelope, low sequence')),
      () => add(`${Date.now() + 60_000}-1000000`, 'd', bodyOf('high sequence')),
      () => add(`${Date.now() + 61_000}-1000001`, '1000001', bodyOf('whole, of a place that nobody has come to')),
      () => add(`${Date.now() + 62_000}-1000002`, '1000002', '{"v":99}\n[]'),
      () => add(`${Date.now() + 120_000}-18446744073709551615`, 'x', 'the highest sequence there is'),
      () => add(`${far}-0`, 'd', bodyOf('valid envelope of the future')),
      // after one of the future Redis itself gives the sequence that would be our next
      () => add('*', 'some', 'thing'),
      () => add('*', 'd', `${'['.repeat(200_000)}\n`),
    ];
    for (const stranger of strangers) {
      await stranger();
      for (let n = 0; n < 3; n++) await ledger.publish(a);
      for (let n = 0; n < 3; n++) await ledger.publish(b);
    }
    for (const pod of [a, b]) {
      await ledger.settle(pod);
      expect(pod.ids.length).toBe(strangers.length * 6);
      expect(pod.handled.map(({ offset }) => offset)).toEqual(pod.handled.map((_, index) => index + 1));
      expect(pod.gaps).toEqual([]);
      expect(pod.counts.of('log_entries_skipped_total')).toBe(strangers.length);
    }
    const page = await a.log.page(0, { ms: 0, offset: 0 }, { entries: 1000, bytes: 1e7 });
    expect(page.entries.map(({ header }) => header.id)).toEqual(a.ids);
    expect(page.holes).toEqual([]);
    const recent = await a.log.recent(0, a.log.newest(0), { entries: 1000, bytes: 1e7 });
    expect(recent.map(({ header }) => header.id)).toEqual(a.ids);
  });

  it('one as the newest entry means nothing to a restart', async () => {
    const first = await startPod('a', { url: redis.url });
    const positions: Position[] = [];
    for (const id of numbered(1, 3)) positions.push((await first.append(id)).position);
    await eventually(() => expect(first.ids).toEqual(numbered(1, 3)));
    await admin.xadd(KEYS.stream, '*', 'foo', 'bar');
    await eventually(() => expect(first.counts.of('log_entries_skipped_total')).toBe(1));
    await first.log.stop();
    await using again = await startPod('a', { url: redis.url });
    await pass(1500); // three heartbeats
    expect(again.log.dispatched(0)).toEqual(positions[2]);
    await again.append('after');
    await eventually(() => expect(again.ids).toEqual(['after']));
    expect([again.turns, again.gaps]).toEqual([[], []]);
  });

  it('one in the same millisecond with our next sequence takes nobody’s place', async () => {
    await using a = await startPod('a', { url: redis.url });
    await using b = await startPod('b', { url: redis.url });
    const ledger = new Ledger(admin);
    await ledger.publish(a);
    await admin.xadd(KEYS.stream, '9999999999999-0', 'x', 'y');
    for (let round = 0; round < 5; round++) {
      await ledger.publish(a);
      const id = (await admin.xadd(KEYS.stream, '*', 'd', bodyOf(`impostor-${round}`))) as string;
      expect(id.split('-')[1]).toBe(String(round + 3)); // or this test shows nothing
    }
    await ledger.publish(b);
    for (const pod of [a, b]) {
      await ledger.settle(pod);
      expect(pod.ids.filter((id) => id.startsWith('impostor'))).toEqual([]);
    }
  });

  it('entries of a format of the future are counted and said once, and their neighbours come', async () => {
    await using a = await startPod('a', { url: redis.url });
    await a.append('before');
    for (let n = 0; n < 3; n++) await a.log.append(0, { body: '{"v":99,"r":[]}\nwhatever' });
    await a.append('after');
    await eventually(() => expect(a.ids).toEqual(['before', 'after']));
    expect(a.counts.of('log_entries_skipped_total{format}')).toBe(3);
    expect(a.lines.filter(({ event }) => event === 'log_format').length).toBe(1);
  });

  it('a handler that throws is counted once per entry, and the next entries come', async () => {
    await using a = await startPod('a', { url: redis.url });
    a.onEntry = ({ offset }) => {
      if (offset % 2 === 0) throw new Error('poisoned');
    };
    await Promise.all(numbered(1, 100).map((id) => a.append(id)));
    await eventually(() => expect(a.ids).toEqual(numbered(1, 100)));
    expect(a.counts.of('log_dispatch_errors_total')).toBe(50);
  });

  it('entries that somebody deleted are one gap that names them', async () => {
    await using a = await startPod('a', { url: redis.url });
    const b = await startPod('b', { url: redis.url });
    await b.log.stop();
    const ids: string[] = [];
    for (let n = 1; n <= 10; n++) {
      const { position } = await a.append(`e-${n}`);
      ids.push(`${position.ms}-${position.offset}`);
    }
    await admin.xdel(KEYS.stream, ...ids.slice(3, 6));
    await using again = await startPod('b', { url: redis.url });
    await eventually(() => expect(again.ids.length).toBe(7));
    expect(again.gaps).toMatchObject([{ reason: 'trimmed', from: { offset: 4 }, to: { offset: 6 } }]);
  });
});

describe('the newest entry', () => {
  it('deleted before it was read is one gap: nothing stalls, and no connection is dropped for it', async () => {
    await using a = await startPod('a', { url: redis.url });
    const b = await startPod('b', { url: redis.url });
    await a.append('one');
    await eventually(() => expect(b.ids).toEqual(['one']));
    await b.log.stop();
    const { position } = await a.append('two');
    await admin.xdel(KEYS.stream, `${position.ms}-${position.offset}`);
    await using again = await startPod('b', { url: redis.url });
    await eventually(() => expect(again.gaps.length).toBe(1), { withinMs: 5000 });
    expect(again.gaps).toMatchObject([{ reason: 'trimmed', from: { offset: 2 }, to: { offset: 2 } }]);
    expect(again.log.dispatched(0)).toEqual(position);
    await eventually(() => expect(again.log.stallMs).toBe(0));
    await a.append('three');
    await eventually(() => expect(again.ids).toEqual(['three']));
    expect([again.counts.of('log_reader_kicks_total'), again.turns, again.gaps.length]).toEqual([0, [], 1]);
  });
});

describe('a log that fell back', () => {
  it('a group or position ahead of the stream does not fall silent', async () => {
    await using a = await startPod('a', { url: redis.url });
    const ledger = new Ledger(admin);
    await ledger.publish(a);
    await admin.xadd(KEYS.stream, '9999999999999-0', 'd', bodyOf('of the future'));
    await ledger.publish(a);
    await ledger.settle(a);
    await admin.del(KEYS.stream);
    await admin.hset(KEYS.meta, 'ms', '1');
    await ledger.during([a], () => pass(1000));
    await ledger.settle(a, 5000);
  });

  it('DEBUG RELOAD changes nothing', async () => {
    await using own = await startRedis({ config: { 'enable-debug-command': 'yes' } });
    await using ownAdmin = adminOf(own.url);
    await using a = await startPod('a', { url: own.url });
    const ledger = new Ledger(ownAdmin);
    await ledger.during([a], async () => {
      for (let round = 0; round < 3; round++) {
        await ownAdmin.call('DEBUG', 'RELOAD');
        await pass(200);
      }
    });
    await ledger.settle(a);
    expect([a.turns, a.gaps]).toEqual([[], []]);
  });
});

describe('a new epoch', () => {
  it('after single entries were deleted repeats nothing, and misses nothing that is there', async () => {
    await using a = await startPod('a', { url: redis.url });
    const first = await startPod('b', { url: redis.url });
    await first.log.stop();
    const positions: Position[] = [];
    for (const id of numbered(1, 20)) positions.push((await a.append(id)).position);
    const remove = (...offsets: number[]) =>
      admin.xdel(KEYS.stream, ...offsets.map((offset) => `${positions[offset - 1]?.ms}-${offset}`));
    await eventually(() => expect(a.ids.length).toBe(20));
    await remove(10); // one that `again` never sees
    await using again = await startPod('b', { url: redis.url });
    await eventually(() => expect(again.ids.length).toBe(19));
    await remove(5, 15, 16); // some that both have had
    await admin.del(KEYS.meta);
    await a.append('after');
    await eventually(() => expect([a.turns.length, again.turns.length]).toEqual([1, 1]));
    await a.append('later');
    await eventually(() => expect([a.ids.at(-1), again.ids.at(-1)]).toEqual(['later', 'later']));
    for (const pod of [a, again]) expect(pod.ids.length).toBe(new Set(pod.ids).size);
    expect(a.gaps).toEqual([]);
    expect(again.gaps).toMatchObject([{ reason: 'trimmed', from: { offset: 10 }, to: { offset: 10 } }]);
  });

  it('because the newest entry was deleted while the pod was away is begun at most once', async () => {
    const first = await startPod('a', { url: redis.url });
    await first.append('one');
    const { position } = await first.append('two');
    await eventually(() => expect(first.ids).toEqual(['one', 'two']));
    await first.log.stop();
    await admin.xdel(KEYS.stream, `${position.ms}-${position.offset}`);
    await using again = await startPod('a', { url: redis.url });
    for (let round = 0; round < 2; round++) {
      await pass(700); // a heartbeat
      await admin.call('CLIENT', 'KILL', 'TYPE', 'normal');
    }
    await pass(300);
    expect(again.counts.of('log_epochs_total')).toBeLessThanOrEqual(1);
    await eventually(async () => void (await again.append('three')));
    await eventually(() => expect(again.ids).toEqual(['three']));
    expect(again.gaps).toEqual([]);
  });

  it('counts only once the reader has found its place there: no position mixes the two', async () => {
    await using a = await startPod('a', { url: redis.url });
    await Promise.all(numbered(1, 10).map((id) => a.append(id)));
    await eventually(() => expect(a.ids.length).toBe(10));
    const before = a.log.dispatched(0);
    await admin.acl('SETUSER', 'default', '-xrange');
    try {
      await admin.flushall();
      await eventually(() => expect(a.counts.of('log_epochs_total{new}')).toBe(1));
      await pass(300);
      expect(a.counts.of('redis_errors_total{read}')).toBeLessThan(10); // tried again, not without pause
      expect(a.log.dispatched(0)).toEqual(before);
      expect(a.log.newest(0)).toEqual(before);
      expect(a.log.resolve(before)).toMatchObject({ kind: 'valid', offset: 10 });
    } finally {
      await admin.acl('SETUSER', 'default', '+@all');
    }
    await eventually(() => expect(a.turns.length).toBe(1));
    expect(a.log.dispatched(0)).toMatchObject({ epoch: a.turns[0]?.to, offset: 0 });
    expect(a.log.resolve(before).kind).toBe('epoch');
  });
});

describe('writing is refused', () => {
  it('out of memory, delivery of what is there goes on', async () => {
    await using a = await startPod('a', { url: redis.url });
    const b = await startPod('b', { url: redis.url });
    await b.log.stop();
    await Promise.all(numbered(1, 100).map((id) => a.append(id)));
    await admin.config('SET', 'maxmemory', '1');
    try {
      await using again = new TestPod('b', { url: redis.url });
      const starting = again.start();
      await pass(500);
      await admin.config('SET', 'maxmemory', '0');
      await starting; // a start inside the window waits for its end
      await eventually(() => expect(again.ids).toEqual(numbered(1, 100)));
    } finally {
      await admin.config('SET', 'maxmemory', '0');
    }
  });
});

describe('after a reconnect', () => {
  it('appends go on, though the log could not be looked at when the connection came back', async () => {
    await using own = await startRedis();
    await using ownAdmin = adminOf(own.url);
    await ownAdmin.acl('SETUSER', 'pod', 'on', 'nopass', '~*', '&*', '+@all');
    await using a = await startPod('a', { url: own.url.replace('redis://', 'redis://pod:any@') });
    await a.append('before');
    await eventually(() => expect(a.ids).toEqual(['before']));
    await ownAdmin.acl('SETUSER', 'pod', '-evalsha');
    const clients = (await ownAdmin.client('LIST')) as string;
    const appends = /^id=(\d+) .* name=holdfast%3Aa%3Aappend /m.exec(clients);
    await ownAdmin.client('KILL', 'ID', Number(appends?.[1]));
    await pass(600);
    await ownAdmin.acl('SETUSER', 'pod', '+@all');
    await eventually(async () => void (await a.append('after')), { withinMs: 5000 });
    await eventually(() => expect(a.ids).toEqual(['before', 'after']));
  });
});

describe('stall', () => {
  it('counts from when entries wait, however often the connection is dropped, and ends with them', async () => {
    await using proxy = await startTcpProxy(redis.port);
    await using a = await startPod('a', { url: redis.url });
    await using b = await startPod('b', { url: `redis://127.0.0.1:${proxy.port}` });
    await a.append('before');
    await eventually(() => expect(b.ids).toEqual(['before']));
    expect(b.log.stallMs).toBe(0);
    await admin.acl('SETUSER', 'default', '-xread', '-xreadgroup', '-xrange');
    try {
      // the read that was already under way still gets one
      await a.append('not-yet');
      await eventually(() => expect(b.ids).toEqual(['before', 'not-yet']));
      await a.append('waits');
      await eventually(() => expect(b.log.stallMs).toBeGreaterThan(2000), { withinMs: 10_000 });
    } finally {
      await admin.acl('SETUSER', 'default', '+@all');
    }
    await eventually(() => expect(b.ids).toEqual(['before', 'not-yet', 'waits']));
    await eventually(() => expect(b.log.stallMs).toBe(0));
  });

  it('rises while heartbeats are refused, which is said once, and so is their return', async () => {
    await using own = await startRedis();
    await using ownAdmin = adminOf(own.url);
    await ownAdmin.acl('SETUSER', 'pod', 'on', 'nopass', '~*', '&*', '+@all');
    await using a = await startPod('a', { url: own.url.replace('redis://', 'redis://pod:any@') });
    const said = (event: string) => a.lines.filter((line) => line.event === event).length;
    await a.append('before');
    await eventually(() => expect(a.ids).toEqual(['before']));
    await ownAdmin.acl('SETUSER', 'pod', '-evalsha');
    await eventually(() => expect(a.log.stallMs).toBeGreaterThan(2000), { withinMs: 5000 });
    await ownAdmin.acl('SETUSER', 'pod', '+@all');
    await eventually(() => expect(a.log.stallMs).toBe(0));
    expect([said('log_refused'), said('log_accepted')]).toEqual([1, 1]);
  });
});
