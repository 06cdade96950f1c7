import { afterAll, beforeAll, expect, test } from 'vitest';
import { parsePosition } from '../../src/wire/position.js';
import type { Client } from '../harness/client.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { ask, dataOf, join, publish, type Stack, someone, startStack } from './fixture.js';
import { RawClient } from './raw-client.js';

let stack: Stack;

// 320 entries at most, and a ring that holds about a hundred
beforeAll(async () => {
  stack = await startStack(1, {
    env: {
      HOLDFAST_LOG_MAX_ENTRIES: '160',
      HOLDFAST_GATEWAY_RING_BYTES: '65536',
      HOLDFAST_GATEWAY_RECOVERY_WINDOW_MS: '30s',
      HOLDFAST_GATEWAY_POSITION_HEARTBEAT_MS: '1s',
    },
  });
});
afterAll(() => stack?.stop());

const offsetOf = (position: unknown): number => parsePosition(position)?.offset ?? Number.NaN;
const numbers = (from: number, count: number): number[] => Array.from({ length: count }, (_, index) => from + index);

function expectAllOrGap(client: Client, positions: readonly string[]): void {
  const gone = new Set<number>();
  for (const { from, to } of client.gaps) for (let at = offsetOf(from); at <= offsetOf(to); at++) gone.add(at);
  const got = client.received.map(({ position }) => offsetOf(position));
  expect(got).toEqual([...got].sort((a, b) => a - b));
  for (const position of positions) {
    const offset = offsetOf(position);
    expect(got.filter((at) => at === offset).length + (gone.has(offset) ? 1 : 0), `offset ${offset}`).toBe(1);
  }
}

test('what was trimmed while a client was away is told as one gap, with its first and last, and never called recovered', async () => {
  const room = someone('room');
  await using client = await join(stack.pod(0), { rooms: [room] });
  const seen = await publish(stack.pod(0), room, [0]);
  await eventually(() => client.received.length === 1);
  const told = (await stack.pod(0).metrics()).get('holdfast_gaps_told_total{reason="trimmed"}') ?? 0;
  client.socket.io.reconnection(false);
  client.cut();
  const missed = await publish(stack.pod(0), room, numbers(1, 1000));
  client.socket.io.reconnection(true);
  client.socket.connect();
  await eventually(() => client.connects.length === 2, { withinMs: 15_000 });
  expect(client.connects[1]?.recovered).toBe(false);
  await publish(stack.pod(0), room, ['live']);
  await eventually(() => dataOf(client).at(-1) === 'live', { withinMs: 15_000 });
  expect(client.gaps).toHaveLength(1);
  expect(client.gaps[0]).toMatchObject({ partition: 0, reason: 'trimmed' });
  expect(offsetOf(client.gaps[0]?.from)).toBe(offsetOf(missed[0]));
  expectAllOrGap(client, [...seen, ...missed]);
  expect((await stack.pod(0).metrics()).get('holdfast_gaps_told_total{reason="trimmed"}')).toBe(told + 1);
  // and then it is complete again
  client.cut();
  const more = await publish(stack.pod(0), room, numbers(2000, 5));
  await eventually(() => client.connects.length === 3 && client.received.some(({ data }) => data === 2004));
  expect(client.connects[2]?.recovered).toBe(true);
  expectAllOrGap(client, more);
});

test('what the ring has lost and the log has not comes from the log', async () => {
  const room = someone('room');
  await using client = await join(stack.pod(0), { rooms: [room] });
  await publish(stack.pod(0), room, [0]);
  await eventually(() => client.received.length === 1);
  client.cut();
  await publish(stack.pod(0), room, numbers(1, 140));
  await eventually(() => client.received.length === 141, { withinMs: 15_000 });
  expect(dataOf(client)).toEqual(numbers(0, 141));
  expect(client.connects[1]?.recovered).toBe(true);
  expect(client.gaps).toEqual([]);
});

test('a quiet client in a busy log recovers: trimming does not overtake the position that it heard', async () => {
  const room = someone('room');
  await using client = await join(stack.pod(0), { rooms: [room] });
  await publish(stack.pod(0), room, ['long ago']);
  await eventually(() => client.received.length === 1);
  const noise = await publish(stack.pod(0), someone('busy'), numbers(0, 700));
  const last = offsetOf(noise.at(-1));
  await eventually(() => offsetOf(client.positions.at(-1)) >= last, { withinMs: 10_000, what: 'a newer position' });
  client.cut();
  await publish(stack.pod(0), room, ['missed']);
  await eventually(() => client.received.length === 2);
  expect(client.connects[1]?.recovered).toBe(true);
  expect(client.gaps).toEqual([]);
});

test('subscribe.from of what is partly trimmed says which part, and brings the rest', async () => {
  const room = someone('room');
  const old = await publish(stack.pod(0), room, numbers(0, 600));
  await using client = await join(stack.pod(0));
  const ack = await client.subscribe(room, old[0]);
  expect(ack).toMatchObject({ ok: true, recovered: false });
  expect(client.gaps).toHaveLength(1);
  expect(offsetOf(client.gaps[0]?.from)).toBe(offsetOf(old[1]));
  const first = offsetOf(client.gaps[0]?.to) + 1;
  expect(dataOf(client)).toEqual(old.flatMap((position, index) => (offsetOf(position) >= first ? [index] : [])));
  expect(client.received.length).toBeGreaterThan(100);
});

test('a position at the edge of what was trimmed is complete, and with a made-up time no way to skip', async () => {
  const room = someone('room');
  await publish(stack.pod(0), room, numbers(0, 400));
  const { body } = await ask(stack.pod(0), 'GET', `/v1/history/${room}?from=earliest&limit=1000`);
  const oldest = parsePosition(body.events[0].position);
  if (!oldest) throw new Error('no position');
  const edge = (ms: number): string => `${oldest.epoch}:0:${ms}-${oldest.offset - 1}`;
  for (const position of [edge(oldest.ms), edge(oldest.ms + 1_000_000), edge(0)]) {
    await using client = await join(stack.pod(0));
    expect(await client.subscribe(room, position)).toMatchObject({ ok: true, recovered: true });
    expect(client.received).toHaveLength(body.events.length);
    expect(client.gaps).toEqual([]);
  }
});

test('history says what is gone before its first event', async () => {
  const room = someone('room');
  const old = await publish(stack.pod(0), room, numbers(0, 500));
  const { body } = await ask(stack.pod(0), 'GET', `/v1/history/${room}?from=${old[0]}&limit=1000`);
  expect(body.gap).toMatchObject({ reason: 'trimmed' });
  expect(offsetOf(body.gap.from)).toBe(offsetOf(old[1]));
  expect(offsetOf(body.gap.to)).toBe(offsetOf(body.events[0].position) - 1);
  const complete = await ask(stack.pod(0), 'GET', `/v1/history/${room}?from=${body.events[0].position}`);
  expect(complete.body.gap).toBeUndefined();
});

test('a client that was cut in the middle of subscribe.from is not in the room', async () => {
  const room = someone('room');
  const text = 'x'.repeat(60_000);
  const [from] = await publish(stack.pod(0), room, [0]);
  for (let index = 0; index < 100; index += 10) await publish(stack.pod(0), room, Array(10).fill({ text }));
  const auth = { token: await token({ sub: someone(), caps: ALL_CAPS }) };
  const client = new RawClient(stack.pod(0).port);
  const { pid } = await client.open(auth);
  await client.next(/holdfast:position/);
  client.send(`421["subscribe",${JSON.stringify({ room, from })}]`);
  await client.next(/"text"/);
  client.socket.pause();
  expect(client.texts.some((frame) => frame.startsWith('431'))).toBe(false);
  await client.stop();
  await using again = new RawClient(stack.pod(0).port);
  expect((await again.open({ ...auth, pid })).pid).toBe(pid);
  await publish(stack.pod(0), room, ['not for it']);
  expect(await again.ask(2, 'subscribe', { room })).toMatchObject({ ok: true });
  await publish(stack.pod(0), room, ['for it']);
  await again.next(/"for it"/);
  expect(again.texts.join()).not.toContain('not for it');
});
