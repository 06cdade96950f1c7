import { copyFile } from 'node:fs/promises';
import { join as joinPath } from 'node:path';
import { setTimeout as pass } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { dataOf, join, publish, type Stack, someone, startStack } from '../gateway/fixture.js';
import { RawClient } from '../gateway/raw-client.js';
import { checkLedger, isClean, type Offer, printLedger } from '../harness/ledger.js';
import { spawnPod, startPod as startProcess } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { adminOf, idsInLog, KEYS, Ledger, startPod, type TestPod } from '../log/rig.js';
import { accountOf, arrival, expectSound, framesOf, offer, throttle } from './hazards.js';

const bearer = async (sub: string) => ({ token: await token({ sub, caps: ALL_CAPS }) });

describe.concurrent('notAfter', () => {
  it('what was told `unavailable` while Redis stood still is not written when it goes on; a retry lands once', async () => {
    await using stack = await startStack(1);
    const pod = stack.pod(0);
    await using client = await join(pod, { rooms: ['news'] });
    expect(await client.publish({ room: 'news', event: 'e', data: 'before' })).toMatchObject({ ok: true });
    await using stranger = adminOf(stack.redis.url);
    await stranger.ping();
    const ids = Array.from({ length: 20 }, (_, n) => `paused-${n}`);
    const publishAll = () => Promise.all(ids.map((id) => client.publish({ room: 'news', event: 'e', data: id, id })));

    stack.redis.pause();
    // the control: a command without a deadline, whose caller gives up as the pod does
    const added = stranger.xadd('control', '*', 'a', '1').catch(() => {});
    const acks = await publishAll();
    stranger.stream.destroy();
    stranger.disconnect();
    await added;
    for (const ack of acks) expect(ack).toMatchObject({ ok: false, code: 'unavailable', retryable: true });
    expect(acks.some(({ mayHaveHappened }) => mayHaveHappened)).toBe(true);
    stack.redis.resume();

    await eventually(
      async () => expect(await client.publish({ room: 'news', event: 'e', data: 'after' })).toMatchObject({ ok: true }),
      { withinMs: 15_000 },
    );
    await eventually(async () => (await stack.client.xlen('control')) === 1, { what: 'Redis to execute what it held' });
    expect(await stack.client.xlen(KEYS.stream)).toBe(2);
    for (let round = 0; round < 2; round++)
      for (const ack of await publishAll()) expect(ack).toMatchObject({ ok: true });
    await eventually(() => client.received.length >= 2 + ids.length);
    expect(dataOf(client).slice(0, 2)).toEqual(['before', 'after']);
    expect(dataOf(client).slice(2).toSorted()).toEqual(ids.toSorted());
    expect(await stack.client.xlen(KEYS.stream)).toBe(2 + ids.length);
    expectSound(pod);
  });
});

describe.concurrent('fall-back to an older copy', () => {
  /** A Redis whose data of an earlier moment come back, as after a restore or an asynchronous failover. */
  async function fallBack(lost: number): Promise<void> {
    await using redis = await startRedis({ aof: 'off', config: { dbfilename: 'now.rdb' } });
    await using admin = adminOf(redis.url);
    await using a = await startPod('a', { url: redis.url });
    await using b = await startPod('b', { url: redis.url });
    const ledger = new Ledger(admin);
    await ledger.during([a, b], () => pass(300));
    const dir = ((await admin.config('GET', 'dir')) as string[])[1] as string;
    await admin.save();
    await copyFile(joinPath(dir, 'now.rdb'), joinPath(dir, 'older.rdb'));
    for (let n = 0; n < lost; n++) await ledger.publish(n % 2 ? a : b);
    for (const pod of [a, b]) await ledger.settle(pod);
    const before = { a: a.handled.length, b: b.handled.length };
    await redis.kill();
    await copyFile(joinPath(dir, 'older.rdb'), joinPath(dir, 'now.rdb'));
    const restoredAt = performance.now();
    await redis.start();
    await eventually(
      () => ledger.publish(a, 1).then(() => a.handled.length > before.a && b.handled.length > before.b),
      { withinMs: 10_000, what: 'both to be live again' },
    );
    expect(performance.now() - restoredAt).toBeLessThan(6000);
    await ledger.during([a, b], () => pass(300));
    for (const pod of [a, b]) {
      await ledger.settle(pod);
      expect(pod.turns.length).toBe(lost > 0 ? 1 : 0);
      expect(pod.gaps.map(({ reason, from, to }) => [reason, to.offset - from.offset + 1])).toEqual(
        lost > 0 ? [['epoch', lost]] : [],
      );
    }
  }

  it('is one gap that names exactly what was lost, and both pods are live again', () => fallBack(40));

  it('to a copy that lacks nothing says nothing', () => fallBack(0));

  it('is seen though a pod that did not know has appended behind it: the lost branch is named, the new one comes once', async () => {
    await using redis = await startRedis({ aof: 'off' });
    await using admin = adminOf(redis.url);
    await using toX = await startTcpProxy(redis.port);
    await using toY = await startTcpProxy(redis.port);
    await using x = await startPod('x', { url: `redis://127.0.0.1:${toX.port}` });
    await using y = await startPod('y', { url: `redis://127.0.0.1:${toY.port}` });
    const append = async (pod: TestPod, ...ids: string[]): Promise<void> => {
      for (const id of ids) await pod.append(id);
    };
    await append(x, 'common-1', 'common-2');
    await eventually(() => y.ids.length === 2 && x.ids.length === 2, { what: 'both to read' });
    await admin.save();
    // y is cut off, x goes on: these will be forgotten
    await toY.refuse(true);
    toY.rst();
    await append(x, 'lost-3', 'lost-4', 'lost-5');
    await eventually(() => x.ids.length === 5, { what: 'x to read its own' });
    await toX.refuse(true);
    toX.rst();
    await redis.kill();
    await redis.start();
    // y knows nothing of what was lost, and goes on at the same offsets
    await toY.refuse(false);
    await eventually(() => append(y, 'new-3').then(() => true), { what: 'y to append', withinMs: 10_000 });
    await append(y, 'new-4');
    await toX.refuse(false);
    await eventually(() => append(x, 'new-5').then(() => true), { what: 'x to append', withinMs: 10_000 });
    await eventually(() => x.ids.at(-1) === 'new-5' && y.ids.at(-1) === 'new-5', { what: 'both to be live' });
    await eventually(() => x.gaps.length > 0 && y.gaps.length > 0, { what: 'both to be told' });
    expect(x.ids).toEqual(['common-1', 'common-2', 'lost-3', 'lost-4', 'lost-5', 'new-3', 'new-4', 'new-5']);
    expect(y.ids).toEqual(['common-1', 'common-2', 'new-3', 'new-4', 'new-5']);
    for (const { gaps } of [x, y])
      expect(gaps).toMatchObject([{ reason: 'epoch', from: { offset: 3 }, to: { offset: 5 } }]);
    expect(await idsInLog(admin)).toEqual(new Set(['common-1', 'common-2', 'new-3', 'new-4', 'new-5']));
  });
});

describe.concurrent('one name twice', () => {
  it('a second process of a living pod’s name gives up after about a lease, and does the first no harm', async () => {
    await using stack = await startStack(1);
    const first = stack.pod(0);
    await using client = await join(first, { rooms: ['news'] });
    const startedAt = performance.now();
    await using second = await spawnPod({ redisUrl: stack.redis.url, name: first.name });
    expect(await second.exit).toEqual({ code: 1, signal: null });
    const tookMs = performance.now() - startedAt;
    expect(tookMs).toBeGreaterThan(3000);
    expect(tookMs).toBeLessThan(30_000);
    expect(second.logs.filter((line) => !line.startsWith('{'))).toEqual([
      `holdfast: another live process is pod "${first.name}": give each its own HOLDFAST_POD`,
    ]);
    await publish(first, 'news', [1, 2, 3]);
    await eventually(() => client.received.length === 3);
    expect(client.disconnects).toEqual([]);
    expectSound(first);
  });

  it('one that was paused until another had its name is fenced when it comes back: its clients are sent away, nothing is lost or comes twice', async () => {
    await using redis = await startRedis({ aof: 'off' });
    await using first = await startProcess({ redisUrl: redis.url, name: 'pod-a' });
    const auth = await bearer(someone());
    await using before = new RawClient(first.port);
    const { pid } = await before.open(auth);
    await before.ask(1, 'subscribe', { room: 'news' });
    await using stays = new RawClient(first.port);
    await stays.open(await bearer(someone()));
    await publish(first, 'news', [0]);
    await before.next(/"e",0,/);
    first.pause();
    await using second = await startProcess({ redisUrl: redis.url, name: 'pod-a' });
    await publish(second, 'news', [1]);
    await using after = new RawClient(second.port);
    const offset = framesOf(before).at(-1)?.position;
    expect(await after.open({ ...auth, pid, offset })).toMatchObject({ pid });
    await publish(second, 'news', [2]);
    await after.next(/"e",2,/);

    first.resume();
    const publishing = (async () => {
      for (let n = 3; n < 20; n++) await publish(second, 'news', [n]);
    })();
    expect(await first.exit).toEqual({ code: 1, signal: null });
    await publishing;
    expect(first.logs.filter((line) => !line.startsWith('{'))).toEqual([
      'holdfast: another process runs as pod "pod-a": this one ends',
    ]);
    await before.closed();
    await stays.closed();
    await after.next(/"e",19,/);
    expect(framesOf(after).map(({ data }) => data)).toEqual(Array.from({ length: 19 }, (_, n) => n + 1));
    expectSound(second);
  });
});

describe.concurrent('a 16 MB event to a slow link', () => {
  it('arrives once, whatever goes beside the log meanwhile; its reader is not closed for it, and others do not wait', async () => {
    // a link that passes nothing for that long would be closed; one event takes several times as long
    await using stack = await startStack(1, {
      env: { HOLDFAST_GATEWAY_MAX_PAYLOAD_BYTES: '16777216', HOLDFAST_GATEWAY_SLOW_READER_MS: '2s' },
    });
    const pod = stack.pod(0);
    await using slow = new RawClient(pod.port);
    await slow.open(await bearer(someone()));
    await slow.ask(1, 'subscribe', { room: 'news' });
    await using other = await join(pod, { rooms: ['news'] });
    await using writer = await join(pod);
    const isThin = throttle(slow.socket, 500_000);
    const startedAt = performance.now();
    expect(await writer.publish({ room: 'news', event: 'e', data: 'x'.repeat(16_500_000), id: 'large' })).toMatchObject(
      { ok: true },
    );
    await eventually(() => other.received.length === 1, { withinMs: 20_000, what: 'the large event on a fast link' });
    const waits: number[] = [];
    for (let n = 0; n < 5; n++) {
      await writer.publish({ room: 'news', event: 'typing', ephemeral: true });
      const sentAt = performance.now();
      await writer.publish({ room: 'news', event: 'e', data: n, id: `small-${n}` });
      await eventually(() => other.received.length === 3 + 2 * n);
      waits.push(performance.now() - sentAt);
    }
    expect(slow.texts.some((text) => text.startsWith('42["e"'))).toBe(false);
    expect(Math.max(...waits)).toBeLessThan(1000);
    isThin();
    const isWider = throttle(slow.socket, 4_000_000);
    await arrival(slow, 'small-4', 40_000);
    isWider();
    expect(performance.now() - startedAt).toBeGreaterThan(5000);
    expect(framesOf(slow).map(({ id }) => id)).toEqual(['large', ...Array.from({ length: 5 }, (_, n) => `small-${n}`)]);
    expect(slow.isClosed).toBe(false);
    const metrics = await pod.metrics();
    expect(metrics.get('holdfast_slow_consumers_closed_total')).toBe(0);
    expect(metrics.get('holdfast_connections')).toBe(3);
    expect([other.disconnects, writer.disconnects]).toEqual([[], []]);
    expectSound(pod);
  });
});

describe.concurrent('banned while away', () => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await startStack(2);
  });
  afterAll(() => stack?.stop());

  /** Somebody in a secret and an open room who was cut; both have brought something since. */
  async function cutOff() {
    const sub = someone();
    const [secret, open] = [someone('secret'), someone('open')];
    const before = new RawClient(stack.pod(0).port);
    const { pid } = await before.open(await bearer(sub));
    await before.ask(1, 'subscribe', { room: secret });
    await before.ask(2, 'subscribe', { room: open });
    await before.stop();
    for (const pod of stack.pods) {
      await publish(pod, secret, ['hidden']);
      await publish(pod, open, ['shown']);
    }
    return { sub, pid, secret, open };
  }

  it('of a room that the new token does not allow nothing reaches the wire, on either pod', async () => {
    for (const pod of stack.pods) {
      const { sub, pid, secret, open } = await cutOff();
      await using after = new RawClient(pod.port);
      const limited = await token({ sub, caps: { subscribe: [open] } });
      expect((await after.open({ token: limited, pid })).pid).toBe(pid);
      await eventually(() => framesOf(after).length >= 2);
      await publish(pod, secret, ['hidden']);
      await publish(pod, open, ['end']);
      await after.next(/"end"/);
      expect(framesOf(after).map(({ data }) => data)).toEqual(['shown', 'shown', 'end']);
      expect(after.texts.join()).not.toContain('hidden');
      for (const each of stack.pods) expectSound(each);
    }
  });

  it('with an expired, a forged or no token nothing reaches the wire; with a good one again all of it does, once', async () => {
    const { sub, pid } = await cutOff();
    for (const bad of [await token({ sub, caps: ALL_CAPS, ttlSeconds: -60 }), 'x.y.z', undefined]) {
      for (const pod of stack.pods) {
        await using refused = new RawClient(pod.port);
        const answer = await refused.open({ token: bad, pid });
        expect(answer.data?.code).toMatch(/unauthorized|token_expired/);
        expect(refused.texts.join()).not.toMatch(/hidden|shown/);
      }
    }
    await using after = new RawClient(stack.pod(1).port);
    expect((await after.open({ ...(await bearer(sub)), pid })).pid).toBe(pid);
    await eventually(() => framesOf(after).length >= 4);
    await publish(stack.pod(0), `user:${sub}`, ['end']);
    await after.next(/"end"/);
    expect(framesOf(after).map(({ data }) => data)).toEqual(['hidden', 'shown', 'hidden', 'shown', 'end']);
  });
});

describe.concurrent('subscribe during catch-up', () => {
  it.each([
    ['the ring', '32000000'],
    ['the log', '65536'],
  ])('brings what follows once, and takes nothing from what is caught up with, from %s', async (_where, ringBytes) => {
    await using stack = await startStack(1, { env: { HOLDFAST_GATEWAY_RING_BYTES: ringBytes } });
    const pod = stack.pod(0);
    const auth = await bearer(someone());
    const offers: Offer[] = [];
    let given = 0;
    const give = async (room: string, bytes = 100): Promise<string> => {
      const id = `${room}-${++given}`;
      const made = await offer(pod, room, id, 'x'.repeat(bytes));
      offers.push(made);
      const [attempt] = made.attempts;
      if (attempt?.outcome.kind !== 'accepted') throw new Error(`${id} was not accepted`);
      return attempt.outcome.position;
    };
    const from = await give('early');
    const cut = new RawClient(pod.port);
    const { pid } = await cut.open(auth);
    const old = await cut.ask(1, 'subscribe', { room: 'old' });
    await cut.stop();
    // more than the kernel takes on both sides
    for (let n = 0; n < 40; n++)
      await Promise.all([give('early'), ...Array.from({ length: 5 }, () => give('old', 100_000)), give('late')]);
    const before = [...offers];

    await using client = new RawClient(pod.port);
    const isThin = throttle(client.socket, 12_000_000);
    expect(await client.open({ ...auth, pid })).toMatchObject({ pid });
    let isOver = false;
    const publishing = (async () => {
      while (!isOver) {
        for (const room of ['old', 'early', 'late']) await give(room);
        await pass(10);
      }
    })();
    const [late, early] = await Promise.all([
      client.ask(2, 'subscribe', { room: 'late' }),
      client.ask(3, 'subscribe', { room: 'early', from }),
    ]);
    expect(late).toMatchObject({ ok: true, recovered: true });
    expect(early).toMatchObject({ ok: true, recovered: true });
    await pass(200);
    isOver = true;
    await publishing;
    isThin();
    for (const room of ['old', 'early', 'late']) await give(room);
    await arrival(client, offers.at(-1)?.id as string);

    const subscriptions = [
      { room: 'old', position: old.position as string, at: 0 },
      { room: 'late', position: late.position as string, at: 0 },
      { room: 'early', position: from, at: 0 },
    ];
    const ledger = checkLedger({ offers, subscribers: [accountOf('client', client, subscriptions)] });
    expect(isClean(ledger), printLedger(ledger)).toBe(true);
    expect(ledger.gaps).toBe(0);
    // the ledger asks for what is due; nothing of a room before its subscription is for this to say
    const frames = framesOf(client);
    const earlier = new Set(before.filter(({ room }) => room === 'late').map(({ id }) => id));
    expect(frames.filter(({ id }) => earlier.has(id))).toEqual([]);
    // both were answered in the middle of it, or this test shows nothing
    const lastMissed = client.texts.findLastIndex((text) =>
      before.some(({ id, room }) => room === 'old' && text.includes(`"id":"${id}"`, text.length - 200)),
    );
    for (const ack of ['432[', '433['])
      expect(client.texts.findIndex((text) => text.startsWith(ack))).toBeLessThan(lastMissed);
    expectSound(pod);
  });
});
