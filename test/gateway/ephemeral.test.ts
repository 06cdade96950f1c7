import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../harness/poll.js';
import { dataOf, join, publish, type Stack, someone, startStack } from './fixture.js';

let stack: Stack;

beforeAll(async () => {
  stack = await startStack(2);
});
afterAll(() => stack?.stop());

const channels = async (): Promise<string[]> => (await stack.client.call('PUBSUB', 'CHANNELS', 'hf:eph:*')) as string[];

test('an ephemeral event reaches the room’s members on every pod, with its meta last, and leaves nothing in the log', async () => {
  const room = someone('room');
  await using near = await join(stack.pod(0), { rooms: [room] });
  await using far = await join(stack.pod(1), { rooms: [room] });
  await using other = await join(stack.pod(1), { rooms: [someone('room')] });
  const length = await stack.client.xlen('hf:{events.0}:s');
  const ack = await near.publish({ room, event: 'typing', data: { who: 'ann' }, id: 'an-id', ephemeral: true });
  expect(ack).toEqual({ ok: true });
  await eventually(() => near.received.length === 1 && far.received.length === 1);
  expect(far.received[0]).toMatchObject({
    event: 'typing',
    data: { who: 'ann' },
    meta: { room, id: 'an-id', at: expect.any(Number) },
    position: undefined,
  });
  expect(await stack.client.xlen('hf:{events.0}:s')).toBe(length);
  await publish(stack.pod(0), 'user:nobody', ['marker']);
  expect(other.received).toEqual([]);
});

test('a text as an ephemeral event’s data is never taken for a position', async () => {
  const room = someone('room');
  await using client = await join(stack.pod(0), { rooms: [room] });
  await client.publish({ room, event: 'e', data: 'x:0:1-1', ephemeral: true });
  await eventually(() => client.received.length === 1);
  client.cut();
  await publish(stack.pod(0), room, ['missed']);
  await eventually(() => client.received.length === 2);
  expect(dataOf(client)).toEqual(['x:0:1-1', 'missed']);
  expect(client.connects[1]?.recovered).toBe(true);
});

test('who subscribed gets the very next one, however many subscribe at once, and who left gets none', async () => {
  const room = someone('room');
  await using first = await join(stack.pod(1));
  await using second = await join(stack.pod(1));
  await using publisher = await join(stack.pod(0));
  await Promise.all([first.subscribe(room), second.subscribe(room)]);
  await publisher.publish({ room, event: 'e', data: 1, ephemeral: true });
  await eventually(() => first.received.length === 1 && second.received.length === 1);
  await first.unsubscribe(room);
  await publisher.publish({ room, event: 'e', data: 2, ephemeral: true });
  await eventually(() => second.received.length === 2);
  expect(dataOf(first)).toEqual([1]);
  await first.subscribe(room);
  await publisher.publish({ room, event: 'e', data: 3, ephemeral: true });
  await eventually(() => first.received.length === 2);
});

test('a channel goes when its room has lost its last member, and one that was refused never comes', async () => {
  const room = someone('room');
  const ours = async (): Promise<boolean> => (await channels()).some((channel) => channel.includes(room));
  const client = await join(stack.pod(0), { rooms: [room] });
  expect(await ours()).toBe(true);
  await client.stop();
  await eventually(async () => !(await ours()), { withinMs: 15_000, what: 'the channel to go' });
  await using again = await join(stack.pod(0));
  expect(await again.request('subscribe', { room, from: 'nonsense' })).toMatchObject({ ok: false });
  expect(await ours()).toBe(false);
});

test('delivery goes on after the connection that listens was cut', async () => {
  const room = someone('room');
  await using client = await join(stack.pod(0), { rooms: [room] });
  const list = (await stack.client.call('CLIENT', 'LIST')) as string;
  for (const [, id] of list.matchAll(/^id=(\d+) .*name=holdfast%3Apod-\d%3Apubsub/gm))
    await stack.client.call('CLIENT', 'KILL', 'ID', id as string);
  await eventually(
    async () => {
      await client.publish({ room, event: 'e', data: 'x', ephemeral: true });
      return client.received.length > 0;
    },
    { withinMs: 15_000, what: 'ephemeral events to come again' },
  );
});
