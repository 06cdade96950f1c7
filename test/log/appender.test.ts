import { Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { adminOf, bodyOf, idsInLog, KEYS, outcomeOf, startPod } from './rig.js';

/** What publishers are promised, and some room for a busy machine. */
const TOLD_WITHIN_MS = 2400;
/** Of appends whose time is not what is tested. */
const PATIENT_MS = 15_000;

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

describe('batches', () => {
  it('offsets are dense, one at a time and all at once', async () => {
    await using pod = await startPod('a', { url: redis.url });
    for (let n = 1; n <= 3; n++) expect((await pod.append(`one-${n}`)).position.offset).toBe(n);
    const results = await Promise.all(Array.from({ length: 2000 }, (_, n) => pod.append(`many-${n}`)));
    expect(results.map(({ position }) => position.offset)).toEqual(Array.from({ length: 2000 }, (_, n) => n + 4));
    await eventually(() => expect(pod.handled.length).toBe(2003));
    expect(pod.handled.map(({ offset }) => offset)).toEqual(Array.from({ length: 2003 }, (_, n) => n + 1));
  });

  it('large entries travel too, each in a batch of its own', async () => {
    await using pod = await startPod('a', { url: redis.url });
    const payload = JSON.stringify(['e', 'x'.repeat(900_000)]);
    await Promise.all(['1', '2', '3'].map((id) => pod.append(id, payload)));
    await eventually(() => expect(pod.ids).toEqual(['1', '2', '3']));
  });

  it('attachments come back as they were; too many are refused before anything is written', async () => {
    await using pod = await startPod('a', { url: redis.url });
    const parts = [Buffer.from([0, 255, 10]), Buffer.alloc(0), Buffer.from('text')];
    let seen: readonly Buffer[] = [];
    pod.onEntry = ({ attachments }) => {
      seen = attachments;
    };
    const together = [
      pod.log.append(0, { body: bodyOf('with'), attachments: parts }),
      outcomeOf(pod.log.append(0, { body: bodyOf('too-many'), attachments: Array(5000).fill(Buffer.alloc(1)) })),
      pod.append('after'),
    ];
    expect(await together[1]).toMatchObject({ code: 'payload_too_large' });
    await Promise.all(together);
    await eventually(() => expect(pod.ids).toEqual(['with', 'after']));
    pod.onEntry = () => {};
    const page = await pod.log.page(0, { ms: 0, offset: 0 }, { entries: 10, bytes: 1e6 });
    expect(page.entries[0]?.attachments).toEqual(parts);
    expect(seen).toEqual([]); // of 'after', which has none
  });

  it('a page and the recent ones keep to their bytes where small entries come before large ones', async () => {
    await using pod = await startPod('a', { url: redis.url });
    const large = JSON.stringify(['e', 'x'.repeat(400_000)]);
    await Promise.all(Array.from({ length: 40 }, (_, n) => pod.append(`small-${n}`)));
    await Promise.all(Array.from({ length: 10 }, (_, n) => pod.append(`large-${n}`, large)));
    await Promise.all(Array.from({ length: 40 }, (_, n) => pod.append(`last-${n}`)));
    await eventually(() => expect(pod.ids.length).toBe(90));
    const limits = { entries: 1000, bytes: 1_000_000 };
    const seen: string[] = [];
    for (let after = { ms: 0, offset: 0 }, isLast = false; !isLast; ) {
      const page = await pod.log.page(0, after, limits);
      expect(page.entries.reduce((sum, { payload }) => sum + payload.length, 0)).toBeLessThanOrEqual(limits.bytes);
      seen.push(...page.entries.map(({ header }) => header.id));
      [after, isLast] = [page.scanned, page.isLast];
    }
    expect(seen).toEqual(pod.ids);
    const recent = await pod.log.recent(0, pod.log.newest(0), limits);
    expect(recent.map(({ header }) => header.id)).toEqual(pod.ids.slice(-recent.length));
    expect(recent.length).toBeGreaterThanOrEqual(43);
    expect(recent.length).toBeLessThanOrEqual(50);
    expect((await pod.log.recent(0, pod.log.newest(0), { ...limits, entries: 20 })).length).toBe(20);
  });

  it('many attachments at once are split into batches', async () => {
    await using pod = await startPod('a', { url: redis.url, budgetMs: PATIENT_MS });
    const attachments = Array<Buffer>(1000).fill(Buffer.alloc(0));
    await Promise.all(Array.from({ length: 50 }, (_, n) => pod.log.append(0, { body: bodyOf(`${n}`), attachments })));
    await eventually(() => expect(pod.ids.length).toBe(50));
    const [record] = await admin.hvals(KEYS.producers);
    expect(Number(record?.split(' ')[0])).toBeGreaterThanOrEqual(3); // the number of its last batch
  });
});

describe('idempotency', () => {
  it('the same id lands once: in one batch, in the next, from another pod, over a reconnect', async () => {
    await using proxy = await startTcpProxy(redis.port);
    await using a = await startPod('a', { url: `redis://127.0.0.1:${proxy.port}` });
    await using b = await startPod('b', { url: redis.url });
    const [first, second] = await Promise.all([a.append('x', undefined, 'x'), a.append('x', undefined, 'x')]);
    expect([first?.isDuplicate, second?.isDuplicate]).toEqual([false, true]);
    for (const pod of [a, b]) {
      const again = await pod.append('x', undefined, 'x');
      expect(again).toEqual({ position: first?.position, isDuplicate: true });
    }
    proxy.rst();
    expect((await a.append('x', undefined, 'x')).isDuplicate).toBe(true);
    expect((await a.append('y')).position.offset).toBe(2);
    await eventually(() => expect(b.ids).toEqual(['x', 'y']));
  });

  it('ids are scoped: another publisher’s same id is another event', async () => {
    await using pod = await startPod('a', { url: redis.url });
    const append = (scope: string) => pod.log.append(0, { body: bodyOf(scope), idempotency: { scope, id: '1' } });
    expect((await append('tenant/user:u')).isDuplicate).toBe(false);
    expect((await append('tenant/user:v')).isDuplicate).toBe(false);
    expect((await append('other/user:u')).isDuplicate).toBe(false);
    expect((await append('tenant/user:u')).isDuplicate).toBe(true);
  });

  it('an id is known in the bucket after its own, and no bucket outlives its window under steady traffic', async () => {
    const idWindowMs = 1000;
    await using pod = await startPod('a', { url: redis.url, idWindowMs });
    const slot = async (): Promise<number> => Math.floor((Number((await admin.time())[0]) * 1000) / idWindowMs);
    await pod.append('x', undefined, 'x');
    const began = await slot();
    await eventually(async () => (await slot()) > began, { what: 'the next bucket' });
    expect((await pod.append('x', undefined, 'x')).isDuplicate).toBe(true);
    let n = 0;
    const isForgotten = async (): Promise<boolean> => {
      await pod.append(`busy-${++n}`, undefined, `busy-${n}`);
      return (await slot()) > began + 3;
    };
    await eventually(isForgotten, { withinMs: 10_000 });
    for (const key of KEYS.ids) expect(await admin.pttl(key)).toBeLessThanOrEqual(2 * idWindowMs);
    expect((await pod.append('x', undefined, 'x')).isDuplicate).toBe(false);
  });

  it('FLUSHALL and DEL of the stream forget the ids with the entries; DEL of the meta forgets neither', async () => {
    await using pod = await startPod('a', { url: redis.url });
    for (const wipe of [() => admin.flushall(), () => admin.del(KEYS.stream)]) {
      await pod.append('x', undefined, 'x');
      await wipe();
      expect((await pod.append('x', undefined, 'x')).isDuplicate).toBe(false);
    }
    const { position } = await pod.append('x', undefined, 'x');
    await admin.del(KEYS.meta);
    const again = await pod.append('x', undefined, 'x');
    expect(again).toMatchObject({ isDuplicate: true, position: { offset: position.offset } });
    expect((await pod.append('y')).position.offset).toBe(position.offset + 1);
  });

  it('a bucket that is full refuses new ids as overloaded, and takes what has none or is known', async () => {
    // a window so long that this test can't fall on its edge
    const idWindowMs = 10_000_000_000_000;
    await using pod = await startPod('a', { url: redis.url, idWindowMs });
    const bucket = KEYS.ids[0];
    const known = await pod.append('known', undefined, 'known');
    for (let at = 0; at < 200_000; at += 10_000)
      await admin.hset(
        bucket,
        Object.fromEntries(Array.from({ length: 10_000 }, (_, n) => [`filler-${at + n}`, '1-1'])),
      );
    const [withId, without] = await Promise.all([
      outcomeOf(pod.append('x', undefined, 'x')),
      outcomeOf(pod.append('y')),
    ]);
    expect([withId.code, without.code]).toEqual(['overloaded', 'ok']);
    expect(await pod.append('known', undefined, 'known')).toEqual({ ...known, isDuplicate: true });
  });
});

// these wait more than they work, each at a Redis of its own
describe.concurrent('when Redis cannot', () => {
  it('refused connections: unavailable in time and certain, and nothing of the outage appears later', async () => {
    await using redis = await startRedis();
    await using admin = adminOf(redis.url);
    await using proxy = await startTcpProxy(redis.port);
    await using pod = await startPod('a', { url: `redis://127.0.0.1:${proxy.port}` });
    await pod.append('before');
    await proxy.refuse(true);
    proxy.rst();
    // a round trip later the pod's own sockets have heard of it
    await admin.ping();
    await admin.ping();
    const outcomes = await Promise.all(Array.from({ length: 50 }, (_, n) => outcomeOf(pod.append(`outage-${n}`))));
    for (const outcome of outcomes) {
      expect(outcome).toMatchObject({ code: 'unavailable', mayHaveHappened: false });
      expect(outcome.ms).toBeLessThan(TOLD_WITHIN_MS);
    }
    await proxy.refuse(false);
    await eventually(async () => void (await pod.append('after')), { withinMs: 10_000 });
    await eventually(() => pod.ids.includes('after'));
    expect(await idsInLog(admin)).toEqual(new Set(['before', 'after']));
  });

  it('a Redis that is killed and comes back: the same', async () => {
    await using own = await startRedis({ aof: 'always' });
    await using ownAdmin = adminOf(own.url);
    await using pod = await startPod('a', { url: own.url });
    await pod.append('before');
    await own.kill();
    const outcome = await outcomeOf(pod.append('outage'));
    expect(outcome).toMatchObject({ code: 'unavailable', mayHaveHappened: false });
    expect(outcome.ms).toBeLessThan(TOLD_WITHIN_MS);
    await own.start();
    await eventually(async () => void (await pod.append('after')), { withinMs: 10_000 });
    await eventually(() => expect(pod.ids).toEqual(['before', 'after']));
    expect(await idsInLog(ownAdmin)).toEqual(new Set(['before', 'after']));
  });

  it('refusals come in the order of the calls, what was sent before what waits', async () => {
    await using redis = await startRedis();
    await using pod = await startPod('a', { url: redis.url, budgetMs: 1500 });
    await pod.append('before');
    redis.pause();
    const refused: string[] = [];
    const ask = (id: string) => pod.append(id).catch(() => void refused.push(id));
    const sent = ask('sent');
    await new Promise(setImmediate);
    const waiting = ask('waiting');
    // both are over by the time that anybody looks
    for (const end = performance.now() + 1600; performance.now() < end; );
    await Promise.all([sent, waiting]);
    expect(refused).toEqual(['sent', 'waiting']);
    redis.resume();

    await eventually(async () => void (await pod.append('after')), { withinMs: 10_000 });
    redis.pause();
    const last = [ask('last sent')];
    await new Promise(setImmediate);
    last.push(ask('last waiting'));
    await pod.log.stop();
    await Promise.all(last);
    expect(refused.slice(2)).toEqual(['last sent', 'last waiting']);
    redis.resume();
  });

  it('only the replies are lost: the resend lands once', async () => {
    await using redis = await startRedis();
    await using admin = adminOf(redis.url);
    await using proxy = await startTcpProxy(redis.port);
    await using pod = await startPod('a', { url: `redis://127.0.0.1:${proxy.port}` });
    await pod.append('before');
    proxy.dropReplies(true);
    const outcome = outcomeOf(pod.append('x'));
    await eventually(async () => (await admin.xlen(KEYS.stream)) === 2, { what: 'the first copy to be written' });
    proxy.dropReplies(false);
    proxy.rst();
    expect(await outcome).toMatchObject({ code: 'ok' });
    await pod.append('after');
    await eventually(() => expect(pod.ids).toEqual(['before', 'x', 'after']));
  });

  it('requests that are held up and then let go: none is executed after its caller was told', async () => {
    await using redis = await startRedis();
    await using admin = adminOf(redis.url);
    await using proxy = await startTcpProxy(redis.port);
    await using pod = await startPod('a', { url: `redis://127.0.0.1:${proxy.port}` });
    await pod.append('before');
    proxy.holdRequests(true);
    const outcomes = await Promise.all(Array.from({ length: 5 }, (_, n) => outcomeOf(pod.append(`held-${n}`))));
    for (const { code, ms } of outcomes) {
      expect(code).toBe('unavailable');
      expect(ms).toBeLessThan(TOLD_WITHIN_MS);
    }
    proxy.holdRequests(false);
    await eventually(async () => void (await pod.append('after')), { withinMs: 10_000 });
    expect(await idsInLog(admin)).toEqual(new Set(['before', 'after']));
  });

  it('out of memory: unavailable at once and certain; Redis with room again takes appends', async () => {
    await using redis = await startRedis();
    await using admin = adminOf(redis.url);
    await using pod = await startPod('a', { url: redis.url });
    await pod.append('before');
    await admin.config('SET', 'maxmemory', '1');
    const error = (await admin
      .call('EVAL', "local r = redis.pcall('XADD', KEYS[1], '*', 'a', '1') error(r)", 1, 'x')
      .catch((thrown: Error) => thrown)) as Error;
    const outcome = await outcomeOf(pod.append('x'));
    await admin.config('SET', 'maxmemory', '0');
    expect(error.message).toMatch(/^OOM /); // error(table) in a script keeps its code
    expect(outcome).toMatchObject({ code: 'unavailable', mayHaveHappened: false });
    expect(outcome.ms).toBeLessThan(1000);
    await pod.append('after');
    await eventually(() => expect(pod.ids).toEqual(['before', 'after']));
  });

  it('a read-only replica: unavailable in time, delivery goes on, and appends do when it is a master again', async () => {
    await using replica = await startRedis({ aof: 'off' });
    await using replicaAdmin = adminOf(replica.url);
    await using pod = await startPod('a', { url: replica.url });
    await pod.append('before');
    await replicaAdmin.replicaof('127.0.0.1', '1'); // of nobody: its data stay
    const outcome = await outcomeOf(pod.append('x'));
    expect(outcome).toMatchObject({ code: 'unavailable', mayHaveHappened: false });
    expect(outcome.ms).toBeLessThan(TOLD_WITHIN_MS);
    await replicaAdmin.replicaof('NO', 'ONE');
    await eventually(async () => void (await pod.append('after')), { withinMs: 10_000 });
    await eventually(() => expect(pod.ids).toEqual(['before', 'after']));
    expect(await idsInLog(replicaAdmin)).toEqual(new Set(['before', 'after']));
  });

  it('a Redis that is loading: certain, and appends go on once it has loaded', async () => {
    await using own = await startRedis({
      config: { 'key-load-delay': '40000', 'loading-process-events-interval-bytes': '1024', rdbcompression: 'no' },
    });
    await using ownAdmin = adminOf(own.url);
    await using pod = await startPod('a', { url: own.url });
    await pod.append('before');
    for (let n = 0; n < 100; n++) await ownAdmin.set(`filler-${n}`, 'x'.repeat(2000));
    await ownAdmin.bgrewriteaof();
    await eventually(async () => (await ownAdmin.info('persistence')).includes('aof_rewrite_in_progress:0'));
    await own.kill();
    const starting = own.start();
    const observer = new Redis(own.url, { enableReadyCheck: false, retryStrategy: () => 20 });
    observer.on('error', () => {});
    const isLoading = async (): Promise<boolean> =>
      observer.get('x').then(
        () => false,
        (error: Error) => error.message.startsWith('LOADING'),
      );
    await eventually(isLoading, { withinMs: 10_000, what: 'Redis to be loading' });
    const outcome = await outcomeOf(pod.append('meanwhile'));
    expect(outcome).toMatchObject({ code: 'unavailable', mayHaveHappened: false });
    await starting;
    await eventually(async () => void (await pod.append('after')), { withinMs: 10_000 });
    await eventually(() => expect(pod.ids).toEqual(['before', 'after']));
    expect([pod.turns, pod.gaps]).toEqual([[], []]);
    observer.disconnect();
  });

  it('a wrong type under the log’s key is an operator’s error: told at once, not retried', async () => {
    await using redis = await startRedis();
    await using admin = adminOf(redis.url);
    await using pod = await startPod('a', { url: redis.url });
    await pod.append('before');
    await admin.set(KEYS.producers, 'a string');
    const outcome = await outcomeOf(pod.append('x'));
    expect(outcome.code).toBe('internal');
    expect(outcome.ms).toBeLessThan(1000);
  });

  it('a reply that was lost before such an error leaves the outcome unknown, also to whoever is told', async () => {
    await using redis = await startRedis();
    await using admin = adminOf(redis.url);
    await using proxy = await startTcpProxy(redis.port);
    await using pod = await startPod('a', { url: `redis://127.0.0.1:${proxy.port}` });
    await pod.append('before');
    proxy.dropReplies(true);
    const outcome = outcomeOf(pod.append('x'));
    await eventually(async () => (await admin.xlen(KEYS.stream)) === 2, { what: 'the first copy to be written' });
    await admin.del(KEYS.producers);
    await admin.set(KEYS.producers, 'a string');
    proxy.dropReplies(false);
    proxy.rst();
    expect(await outcome).toMatchObject({ code: 'internal', mayHaveHappened: true });
    expect(pod.counts.of('log_appends_refused_total{unknown}')).toBe(1);
  });
});

// these work so hard that nothing else can be timed beside them
describe('more than can wait', () => {
  it('64 MB wait and no more: the rest is overloaded at once', async () => {
    await using proxy = await startTcpProxy(redis.port);
    await using pod = await startPod('a', { url: `redis://127.0.0.1:${proxy.port}` });
    proxy.blackhole(true);
    const payload = JSON.stringify(['e', 'x'.repeat(1_000_000)]);
    const outcomes = await Promise.all(
      Array.from({ length: 80 }, (_, n) => outcomeOf(pod.append(`big-${n}`, payload))),
    );
    proxy.blackhole(false);
    const overloaded = outcomes.filter(({ code }) => code === 'overloaded');
    expect(overloaded.length).toBeGreaterThanOrEqual(80 - 68);
    expect(overloaded.length).toBeLessThanOrEqual(80 - 60);
    for (const { ms } of overloaded) expect(ms).toBeLessThan(1000);
  });
});
