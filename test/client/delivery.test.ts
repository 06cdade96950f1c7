import type { AddressInfo } from 'node:net';
import { Server } from 'socket.io';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Client, createClient, RelayError, type RelayEvent } from '../../src/client/index.js';
import { publish, type Stack, startStack } from '../gateway/fixture.js';
import { eventually } from '../harness/poll.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { collect, numbers, open, someone, tokens } from './fixture.js';

let stack: Stack;

beforeAll(async () => {
  stack = await startStack(2);
});
afterAll(() => stack?.stop());

test('what one client publishes another gets in order, whichever pods they are on', async () => {
  const room = someone('room');
  await using subscriber = open(stack.pod(0).url).client;
  await using publisher = open(stack.pod(1).url).client;
  const got = collect(subscriber, room);
  await got.subscription.ready;
  for (const n of numbers(1, 20)) {
    const { position, isDuplicate, id } = await publisher.publish(room, 'tick', n, { id: `id-${n}` });
    expect({ isDuplicate, id }).toEqual({ isDuplicate: false, id: `id-${n}` });
    expect(position).toMatch(/-\d+$/);
  }
  await eventually(() => got.events.length === 20);
  expect(got.data()).toEqual(numbers(1, 20));
  expect(got.events[0]).toMatchObject({ event: 'tick', room, id: 'id-1', at: expect.any(Number) });
});

test('events are typed by their map', async () => {
  type Chat = { message: { text: string }; typing: { user: string } };
  const room = someone('room');
  await using client = createClient<Chat>({ url: stack.pod(0).url, token: tokens() });
  const texts: string[] = [];
  const subscription = client.subscribe(room, {
    onEvent: (event) => {
      if (event.event === 'message') texts.push(event.data.text);
      // @ts-expect-error `typing` has no text
      else event.data.text;
    },
  });
  await subscription.ready;
  await client.publish(room, 'message', { text: 'hello' });
  // @ts-expect-error no such event
  await client.publish(room, 'shout', { text: 'hello' });
  await eventually(() => texts.length === 1);
  expect(texts).toEqual(['hello']);
});

test('for await gives event after event, and break unsubscribes', async () => {
  const room = someone('room');
  await using client = open(stack.pod(0).url).client;
  const subscription = client.subscribe(room);
  await subscription.ready;
  await publish(stack.pod(1), room, numbers(1, 10));
  const seen: unknown[] = [];
  for await (const { data } of subscription) {
    seen.push(data);
    if (data === 4) break;
  }
  expect(seen).toEqual(numbers(1, 4));
  const again = collect(client, room);
  await again.subscription.ready;
  await publish(stack.pod(1), room, [11]);
  await eventually(() => again.events.length > 0);
  expect(again.data()).toEqual([11]);
});

test('a loop ends when the client is closed', async () => {
  const client = open(stack.pod(0).url).client;
  const loop = (async () => {
    for await (const _ of client.subscribe(someone('room')));
    return 'ended';
  })();
  await client.live();
  await client.close();
  expect(await loop).toBe('ended');
});

test('subscriptions that share a room each get every event, and the last one leaves the room', async () => {
  const room = someone('room');
  await using client = open(stack.pod(0).url).client;
  const [first, second] = [collect(client, room), collect(client, room)];
  await client.live();
  await publish(stack.pod(0), room, [1]);
  await eventually(() => first.events.length === 1 && second.events.length === 1);
  await first.subscription.unsubscribe();
  await publish(stack.pod(0), room, [2]);
  await eventually(() => second.events.length === 2);
  expect(first.data()).toEqual([1]);
  await second.subscription.unsubscribe();
  const answer = await client.socket.emitWithAck('unsubscribe', { room });
  expect(answer.ok).toBe(true);
});

test('history comes first with `from`, each event once, then what is new', async () => {
  const room = someone('room');
  const positions = await publish(stack.pod(0), room, numbers(1, 50));
  await using client = open(stack.pod(1).url).client;
  const got = collect(client, room, positions[9]);
  await publish(stack.pod(0), room, numbers(51, 60));
  await eventually(() => got.events.length >= 50);
  expect(got.data()).toEqual(numbers(11, 60));
});

test('an ephemeral event reaches who is there, and is never kept for a connection that is not', async () => {
  const room = someone('room');
  await using client = open(stack.pod(0).url).client;
  const got = collect(client, room);
  await got.subscription.ready;
  expect(await client.publish(room, 'typing', 'me', { ephemeral: true })).toMatchObject({ position: undefined });
  await eventually(() => got.events.length === 1);
  expect(got.events[0]?.position).toBeUndefined();
  client.socket.io.engine.close();
  await expect(client.publish(room, 'typing', 'me', { ephemeral: true })).rejects.toMatchObject({
    code: 'unavailable',
    mayHaveHappened: false,
  });
});

test('a publish whose answers are lost is repeated with its id, and lands once', async () => {
  const room = someone('room');
  await using proxy = await startTcpProxy(stack.pod(0).port);
  await using subscriber = open(stack.pod(1).url).client;
  const { client, states } = open(`http://127.0.0.1:${proxy.port}`);
  await using publisher = client;
  const got = collect(subscriber, room);
  await Promise.all([got.subscription.ready, publisher.live()]);
  proxy.dropReplies(true);
  const publishing = publisher.publish(room, 'e', 'once');
  await eventually(() => got.events.length === 1, { what: 'the event to land' });
  proxy.rst();
  proxy.dropReplies(false);
  const { isDuplicate, id } = await publishing;
  expect(isDuplicate).toBe(true);
  expect(states).toContain('connecting');
  await publish(stack.pod(1), room, ['after']);
  await eventually(() => got.data().includes('after'));
  expect(got.data()).toEqual(['once', 'after']);
  expect(got.events[0]?.id).toBe(id);
});

test('a publish that is given up says that it may have happened, also when a later try certainly did not', async () => {
  await using proxy = await startTcpProxy(stack.pod(0).port);
  await using client = open(`http://127.0.0.1:${proxy.port}`).client;
  await client.live();
  const stop = new AbortController();
  proxy.dropReplies(true);
  const publishing = client.publish('room', 'e', 1, { signal: stop.signal });
  await eventually(() => Object.keys((client.socket as unknown as { acks: object }).acks).length === 1);
  await proxy.refuse(true);
  proxy.rst();
  await eventually(() => client.status.state === 'connecting');
  stop.abort(new Error('no patience'));
  const error = await publishing.catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({ code: 'cancelled', mayHaveHappened: true });
  const late = client.publish('room', 'e', 1, { timeoutMs: 50 });
  await expect(late).rejects.toMatchObject({ code: 'timeout', mayHaveHappened: false });
});

test('refusals are typed, and are not repeated', async () => {
  const { client, errors } = open(stack.pod(0).url, {
    token: tokens({ caps: { subscribe: ['mine'], publish: ['mine'] } }),
  });
  await using _ = client;
  const refused = await client.publish('theirs', 'e', 1).catch((error: unknown) => error);
  expect(refused).toBeInstanceOf(RelayError);
  expect(refused).toMatchObject({ code: 'permission_denied', retryable: false, mayHaveHappened: false });
  await expect(client.publish('mine', 'rpc-call', 1)).rejects.toMatchObject({ code: 'bad_request' });
  await expect(client.publish('mine', 'e', 'x'.repeat(1_100_000))).rejects.toMatchObject({ code: 'payload_too_large' });
  const circular: { self?: unknown } = {};
  circular.self = circular;
  await expect(client.publish('mine', 'e', circular)).rejects.toMatchObject({ code: 'bad_request' });

  const subscription = client.subscribe('theirs');
  await expect(subscription.ready).rejects.toMatchObject({ code: 'permission_denied' });
  await expect(subscription.next()).rejects.toMatchObject({ code: 'permission_denied' });
  expect(errors.map(({ code }) => code)).toEqual(['permission_denied']);
  expect(client.status.state).toBe('live');
});

test('a subscribe that fails by a fault of the relay is told, and repeated until it is taken', async () => {
  const relay = new Server(0);
  let asked = 0;
  relay.on('connection', (socket) => {
    socket.on('subscribe', (_, ack) =>
      ack(
        ++asked < 3
          ? { ok: false, error: 'Internal error', code: 'internal', retryable: false }
          : { ok: true, position: 'X2r:0:1-1', recovered: true },
      ),
    );
  });
  const { port } = relay.httpServer.address() as AddressInfo;
  const { client, errors } = open(`http://127.0.0.1:${port}`);
  await client.subscribe('room').ready;
  await client.live();
  expect(asked).toBe(3);
  expect(errors).toMatchObject([{ code: 'internal' }]);
  await client.close();
  await relay.close();
});

test('a client has at most 997 rooms, which are as many as the relay takes beside the own ones of a device', async () => {
  const { client, errors } = open(stack.pod(0).url, { token: tokens({ device: 'd' }) });
  await using _ = client;
  for (const room of numbers(1, 997)) client.subscribe(`of-many-${room}`);
  expect(() => client.subscribe('one-more')).toThrow('at most 997 rooms');
  await eventually(() => client.status.state === 'live', { withinMs: 30_000 });
  expect(errors).toEqual([]);
  const answer = await client.socket.emitWithAck('subscribe', { room: 'one-more' });
  expect(answer).toMatchObject({ ok: false, code: 'bad_request' });
});

test('options are checked at once', () => {
  const url = stack.pod(0).url;
  const bad = (options: object) => () => createClient({ url, token: 't', ...options });
  expect(bad({ url: 'relay' })).toThrow('url:');
  expect(bad({ token: '' })).toThrow('token:');
  expect(bad({ bufferSize: 0 })).toThrow('bufferSize: wants a whole number from 1');
  expect(bad({ rememberedEvents: 999 })).toThrow('rememberedEvents: wants a whole number from 1000');
});

test('a consumer that is slow gets everything, once and in order, through a buffer that stays small', async () => {
  const room = someone('room');
  const { client, states } = open(stack.pod(0).url, { bufferSize: 10 });
  await using _ = client;
  const subscription = client.subscribe(room);
  await subscription.ready;
  await publish(stack.pod(1), room, numbers(1, 100));
  await eventually(() => client.status.state === 'lagging');
  expect(client.status).toEqual({ state: 'lagging', room });
  // what a handler publishes meanwhile must not wait for the consumer
  await client.publish(room, 'e', 101);
  const seen: unknown[] = [];
  let most = 0;
  for await (const { data } of subscription) {
    seen.push(data);
    most = Math.max(most, subscription.buffered);
    if (seen.length === 101) break;
  }
  expect(seen).toEqual(numbers(1, 101));
  expect(most).toBeLessThanOrEqual(10);
  expect(states.filter((state) => state === 'lagging').length).toBeGreaterThan(1);
});

test('history that is longer than the buffer comes whole too', async () => {
  const room = someone('room');
  const [first] = await publish(stack.pod(1), room, numbers(0, 100));
  await using client = open(stack.pod(0).url, { bufferSize: 10 }).client;
  const subscription = client.subscribe(room, { from: first });
  const seen: unknown[] = [];
  let most = 0;
  for await (const { data } of subscription) {
    seen.push(data);
    most = Math.max(most, subscription.buffered);
    if (seen.length === 100) break;
  }
  expect(seen).toEqual(numbers(1, 100));
  expect(most).toBeLessThanOrEqual(10);
});

test('a history that is longer than the buffer is begun anew only when the buffer is empty', async () => {
  const room = someone('room');
  const [first] = await publish(stack.pod(1), room, numbers(0, 30));
  await using client = open(stack.pod(0).url, { bufferSize: 10 }).client;
  const subscription = client.subscribe(room, { from: first });
  const seen: unknown[] = [];
  const take = async (count: number): Promise<void> => {
    for (let n = 0; n < count; n++) seen.push((await subscription.next()).value?.data);
  };
  for (const _ of [1, 2]) {
    await eventually(() => client.status.state === 'lagging' && subscription.buffered === 10);
    await take(9);
    expect(client.socket.connected).toBe(true);
    await take(1);
    expect(client.socket.connected).toBe(false);
  }
  await take(10);
  expect(seen).toEqual(numbers(1, 30));
});

test('a handler that throws is told, and the next event comes', async () => {
  const room = someone('room');
  const { client, errors } = open(stack.pod(0).url);
  await using _ = client;
  const seen: unknown[] = [];
  const onEvent = async ({ data }: RelayEvent): Promise<void> => {
    if (data === 1) throw new Error('mine');
    seen.push(data);
  };
  await client.subscribe(room, { onEvent }).ready;
  await publish(stack.pod(0), room, [1, 2]);
  await eventually(() => seen.length === 1);
  expect(seen).toEqual([2]);
  expect(errors).toMatchObject([{ code: 'internal', cause: { message: 'mine' } }]);
});

test('close is idempotent, ends what waits and leaves nothing behind', async () => {
  const { client, states } = open('http://127.0.0.1:9');
  const publishing = client.publish('room', 'e', 1);
  const live = client.live();
  await Promise.all([client.close(), client.close()]);
  await expect(publishing).rejects.toMatchObject({ code: 'cancelled', mayHaveHappened: false });
  await expect(live).rejects.toMatchObject({ code: 'cancelled' });
  expect(() => client.subscribe('room')).toThrow('the client is closed');
  expect(states).toEqual(['closed']);
  await expect(client.publish('room', 'e', 1)).rejects.toMatchObject({ code: 'cancelled' });
});

test('an AbortSignal closes a client', async () => {
  const stop = new AbortController();
  const client: Client = open(stack.pod(0).url, { signal: stop.signal }).client;
  await client.live();
  stop.abort();
  expect(client.status.state === 'closed' || !client.socket.connected).toBe(true);
  await eventually(() => client.status.state === 'closed');
});
