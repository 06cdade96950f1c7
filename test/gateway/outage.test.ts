import { expect, test } from 'vitest';
import { connect, open } from '../harness/client.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { ask, dataOf, join, publish, someone, startStack } from './fixture.js';
import { RawClient } from './raw-client.js';

/** Runs `work` and says how long it took, in ms. */
async function timed<T>(work: () => Promise<T>): Promise<{ value: T; ms: number }> {
  const startedAt = performance.now();
  const value = await work();
  return { value, ms: performance.now() - startedAt };
}

for (const how of ['dies', 'hangs'] as const) {
  test.concurrent(`while Redis ${how} work is refused in time, sockets stay, clients are held or admitted, and all heals`, async () => {
    await using stack = await startStack(1);
    const pod = stack.pod(0);
    const [room, late] = [someone('room'), someone('late')];
    const sub = someone();
    const auth = { token: await token({ sub, caps: ALL_CAPS }) };
    await using stays = await join(pod, { rooms: [room] });
    const cut = new RawClient(pod.port);
    const { pid } = await cut.open(auth);
    await cut.ask(1, 'subscribe', { room });
    await cut.stop();
    await publish(pod, room, ['before']);
    await eventually(() => stays.received.length === 1);

    if (how === 'dies') await stack.redis.kill();
    else stack.redis.pause();

    const publishing = await timed(() => stays.publish({ room, event: 'e', data: 'refused' }));
    expect(publishing.value).toMatchObject({ ok: false, code: 'unavailable', retryable: true });
    expect(publishing.ms).toBeLessThan(4000);
    const ephemeral = await timed(() => stays.publish({ room, event: 'e', ephemeral: true }));
    expect(ephemeral.value).toMatchObject({ ok: false, code: 'unavailable' });
    expect(ephemeral.ms).toBeLessThan(4000);
    const subscribing = await timed(() => stays.subscribe(late));
    expect(subscribing.value).toMatchObject({ ok: false, code: 'unavailable', retryable: true });
    expect(subscribing.ms).toBeLessThan(4000);
    expect(await stays.unsubscribe(room)).toMatchObject({ ok: false, code: 'unavailable', retryable: true });
    const http = await timed(() => ask(pod, 'POST', '/v1/publish', { body: { room, event: 'e' } }));
    expect(http.value).toMatchObject({ status: 503, body: { code: 'unavailable', retryable: true } });
    expect((await ask(pod, 'GET', `/v1/history/${room}`)).status).toBe(503);
    expect((await ask(pod, 'GET', '/health')).status).toBe(200);

    // one without a past is let in; one with a pid waits for its past
    await using fresh = await connect(pod.url, { token: await token({ sub: someone(), caps: ALL_CAPS }) });
    await using returning = new RawClient(pod.port);
    await returning.next(/^0/);
    returning.send(`40${JSON.stringify({ ...auth, pid })}`);
    await eventually(async () => (await pod.metrics()).get('holdfast_handshakes_held_total') === 1);
    expect(returning.texts.some((text) => text.startsWith('40'))).toBe(false);

    if (how === 'dies') await stack.redis.start();
    else stack.redis.resume();
    await eventually(async () => (await stays.publish({ room, event: 'e', data: 'after' })).ok, { withinMs: 15_000 });
    await eventually(() => dataOf(stays).includes('after'));
    expect(stays.disconnects).toEqual([]);
    expect(fresh.disconnects).toEqual([]);
    // the record of a client that came meanwhile follows
    const records = async (): Promise<string[]> => {
      const keys = await stack.client.keys('hf:resume:*');
      return keys.length === 0 ? [] : ((await stack.client.mget(keys)) as string[]);
    };
    await eventually(async () => (await records()).some((record) => record.includes(fresh.socket.id as string)), {
      what: 'the record of a client that came during the outage',
    });

    // each connection to Redis comes back by itself
    await eventually(async () => (await fresh.subscribe(room)).ok);

    // the subscribe that was refused has left nothing behind, on this socket or in its record
    await publish(pod, late, ['not subscribed']);
    stays.cut();
    await eventually(() => stays.connects.length === 2, { withinMs: 15_000 });
    await publish(pod, late, ['not subscribed']);
    await publish(pod, room, ['end']);
    await eventually(() => dataOf(stays).includes('end') && dataOf(fresh).includes('end'));
    expect(dataOf(stays)).not.toContain('not subscribed');

    if (how === 'hangs') {
      const answer = JSON.parse((await returning.next(/^40/, { withinMs: 20_000 })).slice(2));
      expect(answer.pid).toBe(pid);
      await returning.next(/"before"/);
    } else {
      // Redis came back without its data: what was missed is named
      const answer = JSON.parse((await returning.next(/^40/, { withinMs: 20_000 })).slice(2));
      expect(answer.pid).not.toBe(pid);
    }
  });
}

test.concurrent('FLUSHALL loses what it deleted and no more: everybody is told the gap, and goes on', async () => {
  await using stack = await startStack(2, { env: { HOLDFAST_GATEWAY_RECOVERY_WINDOW_MS: '30s' } });
  const [first, second] = [stack.pod(0), stack.pod(1)];
  const room = someone('room');
  const sub = someone();
  await using live = await join(first, { rooms: [room] });
  await using away = open(first.url, { token: await token({ sub, caps: ALL_CAPS }), reconnectionDelayMs: 400 });
  await away.connected();
  await away.subscribe(room);
  await publish(first, room, [1, 2, 3]);
  await eventually(() => live.received.length === 3 && away.received.length === 3);
  const old = away.position as string;

  away.cut();
  await publish(first, room, ['lost to who is away']);
  await stack.client.flushall();
  await eventually(() => away.connects.length === 2, { withinMs: 20_000 });
  await eventually(() => live.gaps.length >= 1, { withinMs: 15_000, what: 'the gap to be told' });
  expect(live.gaps[0]).toMatchObject({ partition: 0, reason: 'epoch' });
  await publish(second, room, ['new 1', 'new 2']);
  await eventually(() => dataOf(live).includes('new 2'), { withinMs: 10_000 });
  // the living socket's record was written again: its session outlives its pod
  await eventually(async () => (await stack.client.keys('hf:resume:*')).length >= 1, { withinMs: 10_000 });
  live.cut();
  await publish(second, room, ['new 3']);
  await eventually(() => dataOf(live).includes('new 3'), { withinMs: 10_000 });
  expect(live.connects[1]?.recovered).toBe(true);
  expect(dataOf(live).slice(-3)).toEqual(['new 1', 'new 2', 'new 3']);
  expect(away.connects.some(({ recovered }, index) => index > 0 && recovered) && away.gaps.length === 0).toBe(false);

  // whoever brings a position of the log that is gone, on any pod: the gap, then everything new
  for (const pod of [first, second]) {
    const told = pod === first ? 'offset' : 'position';
    await publish(second, `user:${sub}`, [`new for the user on ${pod.name}`]);
    await using client = new RawClient(pod.port);
    const answer = await client.open({
      token: await token({ sub, caps: ALL_CAPS }),
      [told]: old,
      ...(told === 'offset' && { pid: 'a-pid-of-a-wiped-log' }),
    });
    expect(answer.pid).not.toBe('a-pid-of-a-wiped-log');
    expect(await client.next(/holdfast:gap/)).toContain('"reason":"epoch"');
    await client.next(new RegExp(`new for the user on ${pod.name}`));
    const ack = await client.ask(1, 'subscribe', { room, from: old });
    expect(ack).toMatchObject({ ok: true, recovered: false });
    expect(client.texts.filter((text) => /"new [123]"/.test(text))).toHaveLength(3);
  }
});

test.concurrent('a position of an epoch that this pod has not met yet is neither a gap nor replayed twice', async () => {
  await using stack = await startStack(2);
  const [ahead, behind] = [stack.pod(0), stack.pod(1)];
  const room = someone('room');
  const sub = someone();
  await using client = new RawClient(ahead.port);
  const auth = { token: await token({ sub, caps: ALL_CAPS }) };
  const { pid } = await client.open(auth);
  await client.ask(1, 'subscribe', { room });
  await publish(ahead, room, ['old']);
  await client.next(/"old"/);
  behind.pause();
  await stack.client.flushall();
  await client.next(/holdfast:gap/);
  const [, second] = (await publish(ahead, room, ['new 1', 'new 2'])) as [string, string];
  await client.next(/"new 2"/);
  await eventually(async () => (await stack.client.keys('hf:resume:*')).length >= 1);
  await client.stop();
  const again = new RawClient(behind.port);
  const opening = again.open({ ...auth, pid, offset: second });
  behind.resume();
  expect((await opening).pid).toBe(pid);
  await publish(ahead, room, ['new 3']);
  await again.next(/"new 3"/);
  expect(again.texts.filter((text) => /"new [12]"|holdfast:gap/.test(text))).toEqual([]);
  await again.stop();
});
