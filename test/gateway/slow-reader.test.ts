import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Pod, startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { dataOf, join, publish, type Stack, someone, startStack } from './fixture.js';
import { RawClient } from './raw-client.js';

let stack: Stack;
let pod: Pod;

beforeAll(async () => {
  stack = await startStack(1, { env: { HOLDFAST_GATEWAY_SLOW_READER_MS: '1500' } });
  pod = stack.pod(0);
});
afterAll(() => stack?.stop());

const series = async (name: string): Promise<number> => (await pod.metrics()).get(name) ?? 0;

/** A client in `room` that reads nothing more. */
async function deaf(room: string, on = pod): Promise<RawClient> {
  const client = new RawClient(on.port);
  await client.open({ token: await token({ sub: someone('deaf'), caps: ALL_CAPS }) });
  await client.ask(1, 'subscribe', { room });
  client.socket.pause();
  return client;
}

test('a client that pauses and reads on gets everything once, in order, without a reconnect', async () => {
  await using patient = await startPod({
    redisUrl: stack.redis.url,
    name: 'patient',
    env: { HOLDFAST_GATEWAY_SLOW_READER_MS: '60s' },
  });
  const room = someone('room');
  const client = await deaf(room, patient);
  const behind = async (): Promise<number> => (await patient.metrics()).get('holdfast_slow_consumers_behind') ?? 0;
  const text = 'x'.repeat(20_000);
  let total = 0;
  // the kernel takes some megabytes before anything waits here
  await eventually(
    async () => {
      await publish(
        pod,
        room,
        Array.from({ length: 20 }, () => ({ index: total++, text })),
      );
      return total >= 400 && (await behind()) === 1;
    },
    { withinMs: 30_000, what: 'the client to fall behind' },
  );
  client.socket.resume();
  const seen = (): number[] => client.texts.flatMap((frame) => /"index":(\d+)/.exec(frame)?.[1] ?? []).map(Number);
  await eventually(() => seen().length >= total, { withinMs: 20_000 });
  await publish(pod, room, [{ index: total }]);
  await eventually(() => seen().length > total);
  expect(seen()).toEqual(Array.from({ length: total + 1 }, (_, index) => index));
  expect(client.isClosed).toBe(false);
  await eventually(async () => (await behind()) === 0);
  await client.stop();
});

test('an event of a megabyte passes to a client that reads', async () => {
  const room = someone('room');
  await using reader = await join(pod, { rooms: [room] });
  await publish(pod, room, ['x'.repeat(990_000)]);
  await publish(pod, room, ['small']);
  await eventually(() => reader.received.length === 2);
  expect(dataOf(reader)[1]).toBe('small');
  expect(reader.disconnects).toEqual([]);
});

test('a megabyte of ephemeral events unread ends a connection, and only that', async () => {
  const room = someone('room');
  await using reader = await join(pod, { rooms: [room] });
  const client = await deaf(room);
  const closed = await series('holdfast_slow_consumers_closed_total');
  let sent = 0;
  await eventually(
    async () => {
      for (let batch = 0; batch < 5; batch++, sent++)
        await reader.publish({ room, event: 'e', data: 'x'.repeat(200_000), ephemeral: true });
      return (await series('holdfast_slow_consumers_closed_total')) > closed;
    },
    { withinMs: 30_000, what: 'the slow consumer to be closed' },
  );
  expect((await series('holdfast_slow_consumers_closed_total')) - closed).toBe(1);
  await eventually(() => reader.received.length === sent);
  expect(reader.disconnects).toEqual([]);
  await client.stop();
});

test('who asks and asks and reads no answer is closed', async () => {
  await using client = new RawClient(pod.port);
  await client.open({ token: await token({ sub: someone(), caps: ALL_CAPS }) });
  const closed = await series('holdfast_slow_consumers_closed_total');
  client.socket.pause();
  const flood = Array.from({ length: 2000 }, (_, index) => index);
  await eventually(
    async () => {
      for (const id of flood) client.send(`42${id}["publish",{}]`);
      return (await series('holdfast_slow_consumers_closed_total')) > closed;
    },
    { withinMs: 40_000, what: 'the flood to be ended' },
  );
});
