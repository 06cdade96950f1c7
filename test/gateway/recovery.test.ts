import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Client, connect, open } from '../harness/client.js';
import { eventually } from '../harness/poll.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { dataOf, join, publish, type Stack, someone, startStack } from './fixture.js';
import { RawClient } from './raw-client.js';

let stack: Stack;

beforeAll(async () => {
  stack = await startStack(2, { env: { HOLDFAST_GATEWAY_RECOVERY_WINDOW_MS: '20s' } });
});
afterAll(() => stack?.stop());

/** Where a stock client goes when it comes back. */
function moveTo(client: Client, url: string): void {
  (client.socket.io as unknown as { uri: string }).uri = url;
}

async function back(client: Client, count: number): Promise<void> {
  await eventually(() => client.connects.length >= count && client.socket.connected, {
    withinMs: 15_000,
    what: `connect number ${count}`,
  });
}

test('a client that was cut before it received anything misses nothing', async () => {
  const room = someone('room');
  await using proxy = await startTcpProxy(stack.pod(0).port);
  await using client = await connect(`http://127.0.0.1:${proxy.port}`, {
    token: await token({ sub: someone(), caps: ALL_CAPS }),
    reconnectionDelayMs: 300,
  });
  await client.subscribe(room);
  proxy.rst();
  await publish(stack.pod(1), room, [1, 2, 3]);
  await back(client, 2);
  await eventually(() => client.received.length >= 3);
  expect(dataOf(client)).toEqual([1, 2, 3]);
  expect(client.connects[1]?.recovered).toBe(true);
  expect(client.connects[1]?.socketId).toBe(client.connects[0]?.socketId);
});

test('however often a client recovers, on whichever pod, it sees each event once and its position moves', async () => {
  const room = someone('room');
  await using client = await join(stack.pod(0), { rooms: [room] });
  client.cut();
  await publish(stack.pod(0), room, [1, 2, 3, 4, 5]);
  await back(client, 2);
  await eventually(() => client.received.length >= 5);
  for (let cycle = 3; cycle <= 6; cycle++) {
    moveTo(client, stack.pod(cycle % 2).url);
    client.cut();
    await back(client, cycle);
    expect(client.connects.at(-1)?.recovered).toBe(true);
  }
  await publish(stack.pod(1), room, ['last']);
  await eventually(() => client.received.length >= 6);
  expect(dataOf(client)).toEqual([1, 2, 3, 4, 5, 'last']);
  expect(client.gaps).toEqual([]);
});

test('binary events are replayed as they came', async () => {
  const room = someone('room');
  await using publisher = await join(stack.pod(0));
  await using client = await join(stack.pod(0), { rooms: [room] });
  client.cut();
  const data = { file: Buffer.from([1, 2, 3]), name: 'x' };
  await publisher.publish({ room, event: 'e', data });
  await back(client, 2);
  await eventually(() => client.received.length === 1);
  expect(client.received[0]?.data).toEqual(data);
  expect(client.received[0]?.position).toMatch(/-\d+$/);
});

test('SIGKILL of its pod costs a client nothing', async () => {
  await using own = await startStack(2);
  const [first, second] = [own.pod(0), own.pod(1)];
  const clients = await Promise.all(Array.from({ length: 5 }, () => join(first, { rooms: ['room'] })));
  await publish(second, 'room', [0]);
  const killed = first.sigkill();
  for (const client of clients) moveTo(client, second.url);
  await killed;
  await publish(
    second,
    'room',
    Array.from({ length: 50 }, (_, index) => index + 1),
  );
  for (const client of clients) {
    await back(client, 2);
    await eventually(() => client.received.length >= 51, { withinMs: 15_000 });
    expect(dataOf(client)).toEqual(Array.from({ length: 51 }, (_, index) => index));
    expect(client.connects[1]?.recovered).toBe(true);
    await client.stop();
  }
});

describe('somebody else', () => {
  test("who brings another user's pid starts afresh, and the victim stays", async () => {
    const room = someone('room');
    await using victim = new RawClient(stack.pod(0).port);
    const { pid } = await victim.open({ token: await token({ sub: someone('victim'), caps: ALL_CAPS }) });
    await victim.ask(1, 'subscribe', { room });
    const [position] = await publish(stack.pod(0), room, ['secret']);
    await victim.next(/secret/);
    await using thief = new RawClient(stack.pod(1).port);
    const answer = await thief.open({
      token: await token({ sub: someone('thief') }),
      pid,
      offset: position?.replace(/-\d+$/, '-0'),
    });
    expect(answer.pid).not.toBe(pid);
    await publish(stack.pod(0), room, ['more']);
    await victim.next(/more/);
    expect(thief.texts.join()).not.toMatch(/secret|more/);
    expect(victim.isClosed).toBe(false);
  });

  test('two connections that bring one pid at the same instant: one has the session, the other starts afresh', async () => {
    const auth = { token: await token({ sub: someone(), caps: ALL_CAPS }) };
    for (let round = 0; round < 5; round++) {
      const lost = new RawClient(stack.pod(0).port);
      const { pid } = await lost.open(auth);
      await lost.stop();
      const pair = [0, 1].map((index) => new RawClient(stack.pod(round < 3 ? 0 : index).port));
      const answers = await Promise.all(pair.map((client) => client.open({ ...auth, pid })));
      // one after the other is also right: then the later one has taken over
      const owners = pair.filter((client, index) => answers[index]?.pid === pid && !client.isClosed);
      expect(answers.filter((answer) => answer.pid !== undefined)).toHaveLength(2);
      expect(owners.length).toBeGreaterThanOrEqual(1);
      await eventually(
        () => pair.filter((client, index) => answers[index]?.pid === pid && !client.isClosed).length === 1,
      );
      for (const client of pair) await client.stop();
    }
  });

  test('a second CONNECT on one connection ends it: it would get everything twice', async () => {
    const auth = JSON.stringify({ token: await token({ sub: someone(), caps: ALL_CAPS }) });
    await using client = new RawClient(stack.pod(0).port);
    await client.next(/^0/);
    client.send(`40${auth}`);
    client.send(`40${auth}`);
    await client.closed();
  });
});

test('the record is there before CONNECT, holds a room before its subscribe is answered, and lasts as long as the window', async () => {
  const room = someone('room');
  const auth = { token: await token({ sub: someone(), caps: ALL_CAPS }) };
  const client = new RawClient(stack.pod(0).port);
  const { pid, sid } = await client.open(auth);
  const key = `hf:resume:{${pid}}`;
  expect(JSON.parse((await stack.client.get(key))?.split('\n')[1] ?? '')).toMatchObject({ sid, tenant: 'default' });
  const rooms = async (): Promise<string> => (await stack.client.get(key)) ?? '';
  for (let index = 0; index < 10; index++) {
    await client.ask(index + 1, 'subscribe', { room: `${room}-${index}` });
    expect(await rooms()).toContain(`${room}-${index}"`);
  }
  await client.ask(20, 'unsubscribe', { room: `${room}-3` });
  expect(await rooms()).not.toContain(`${room}-3"`);
  await client.stop();
  await eventually(async () => (await stack.client.pttl(key)) <= 20_000);
  expect(await stack.client.pttl(key)).toBeGreaterThan(10_000);
  const left = new RawClient(stack.pod(0).port);
  expect((await left.open({ ...auth, pid })).pid).toBe(pid);
  left.send('41');
  await eventually(async () => (await stack.client.exists(key)) === 0);
  await left.stop();
});

test('a half-open predecessor ends when its client is back on another pod, and its late death changes nothing', async () => {
  const room = someone('room');
  await using own = await startStack(2);
  const [old, next] = [own.pod(0), own.pod(1)];
  await using proxy = await startTcpProxy(old.port);
  const auth = { token: await token({ sub: someone(), caps: ALL_CAPS }) };
  await using before = new RawClient(proxy.port);
  const { pid, sid } = await before.open(auth);
  await before.ask(1, 'subscribe', { room });
  const connections = async (): Promise<number | undefined> => (await old.metrics()).get('holdfast_connections');
  expect(await connections()).toBe(1);
  proxy.blackhole(true);
  await publish(next, room, ['missed']);
  await using after = new RawClient(next.port);
  expect(await after.open({ ...auth, pid })).toMatchObject({ pid, sid });
  await after.next(/"missed"/);
  await eventually(async () => (await connections()) === 0, { what: 'the predecessor to be ended' });
  expect((await old.metrics()).get('holdfast_disconnects_total{code="replaced"}')).toBe(1);
  await old.sigkill();
  await publish(next, room, ['live']);
  await after.next(/"live"/);
  await after.stop();
  await using again = new RawClient(next.port);
  expect(await again.open({ ...auth, pid })).toMatchObject({ pid, sid });
});

test('who disconnects on purpose is not resumed', async () => {
  const room = someone('room');
  await using client = await join(stack.pod(0), { rooms: [room] });
  client.socket.disconnect();
  client.socket.connect();
  await back(client, 2);
  expect(client.connects[1]?.recovered).toBe(false);
  await publish(stack.pod(0), room, ['not for it']);
  await publish(stack.pod(0), `user:${'nobody'}`, ['marker']);
  expect((await client.subscribe(room)).ok).toBe(true);
  await publish(stack.pod(0), room, ['for it']);
  await eventually(() => client.received.length > 0);
  expect(dataOf(client)).toEqual(['for it']);
});

test('a client hears its position right after CONNECT, and one in the same tick subscribes and publishes without loss', async () => {
  const room = someone('room');
  const client = open(stack.pod(0).url, { token: await token({ sub: someone(), caps: ALL_CAPS }) });
  const acks: unknown[] = [];
  client.socket.on('connect', () => {
    client.socket.emit('subscribe', { room }, (ack: unknown) => acks.push(ack));
    client.socket.emit('publish', { room, event: 'e', data: 'first' }, (ack: unknown) => acks.push(ack));
  });
  await eventually(() => acks.length === 2 && client.positions.length > 0);
  expect(acks).toEqual([expect.objectContaining({ ok: true }), expect.objectContaining({ ok: true })]);
  await publish(stack.pod(1), room, ['second']);
  await eventually(() => dataOf(client).includes('second'));
  await client.stop();
});

test('a client that brings a position of a pod that is ahead gets neither old events again nor fewer', async () => {
  const room = someone('room');
  await using client = await join(stack.pod(0), { rooms: [room] });
  await publish(stack.pod(0), room, [1, 2]);
  await eventually(() => client.received.length === 2);
  stack.pod(1).pause();
  try {
    await publish(stack.pod(0), room, [3, 4]);
    await eventually(() => client.received.length === 4);
    moveTo(client, stack.pod(1).url);
    client.cut();
    await publish(stack.pod(0), room, [5]);
  } finally {
    stack.pod(1).resume();
  }
  await back(client, 2);
  await publish(stack.pod(0), room, [6]);
  await eventually(() => client.received.length >= 6, { withinMs: 15_000 });
  expect(dataOf(client)).toEqual([1, 2, 3, 4, 5, 6]);
  expect(client.connects[1]?.recovered).toBe(true);
});

describe('positions that a client brings', () => {
  test('`auth.position` without a record joins the rooms of the token there', async () => {
    const sub = someone();
    const [position] = await publish(stack.pod(0), `user:${sub}`, ['seen']);
    await publish(stack.pod(0), `user:${sub}`, ['a', 'b']);
    await using client = await connect(stack.pod(1).url, { token: await token({ sub }), auth: { position } });
    await eventually(() => client.received.length >= 2);
    expect(dataOf(client)).toEqual(['a', 'b']);
    expect(client.connects[0]?.recovered).toBe(false);
  });

  test('one that was made up is no position: nothing is replayed, nothing is called a gap, nothing is recovered', async () => {
    const sub = someone();
    const [first, second] = (await publish(stack.pod(0), `user:${sub}`, ['a', 'b'])) as [string, string];
    const [, epoch, ms, offset] = /^(\w+|[\w-]+):0:(\d+)-(\d+)$/.exec(first) as unknown as string[];
    const forged = [
      `${epoch}:0:${Number(ms) + 100_000}-${offset}`,
      `${epoch}:0:${Number(ms) - 100_000}-${offset}`,
      `${epoch}:0:${ms}-999999`,
      `${epoch}:7:${ms}-${offset}`,
      'user text',
      '',
      17,
      null,
      { epoch },
    ];
    for (const position of forged) {
      for (const auth of [{ position }, { offset: position }]) {
        const before = new RawClient(stack.pod(0).port);
        const { pid } = await before.open({ token: await token({ sub }) });
        await before.stop();
        await using client = new RawClient(stack.pod(0).port);
        const answer = await client.open({ token: await token({ sub }), ...auth, ...('offset' in auth && { pid }) });
        if ('offset' in auth && position !== undefined) expect(answer.pid, String(position)).not.toBe(pid);
        await client.next(/holdfast:position/);
        expect(client.texts.filter((text) => /^42\["(e|holdfast:gap)"/.test(text))).toEqual([]);
      }
    }
    await using honest = await connect(stack.pod(0).url, { token: await token({ sub }), auth: { position: first } });
    await eventually(() => honest.received.length === 1);
    expect(honest.received[0]?.position).toBe(second);
  });
});

describe('subscribe.from', () => {
  test('brings what the room had since, without positions, then goes on live', async () => {
    const room = someone('room');
    const [from] = await publish(stack.pod(0), room, [0]);
    await publish(stack.pod(0), room, [1, 2, 3]);
    await using client = await join(stack.pod(1));
    const ack = await client.subscribe(room, from);
    expect(ack).toMatchObject({ ok: true, recovered: true });
    expect(dataOf(client)).toEqual([1, 2, 3]);
    expect(client.received.every(({ position }) => position === undefined)).toBe(true);
    await publish(stack.pod(0), room, [4]);
    await eventually(() => client.received.length === 4);
    expect(client.received[3]?.position).toMatch(/-\d+$/);
  });

  test('of a room that is joined brings only what came before it was joined', async () => {
    const room = someone('room');
    const [from] = await publish(stack.pod(0), room, [0]);
    await publish(stack.pod(0), room, [1]);
    await using client = await join(stack.pod(0), { rooms: [room] });
    await publish(stack.pod(0), room, [2]);
    await eventually(() => client.received.length === 1);
    expect(await client.subscribe(room, from)).toMatchObject({ ok: true, recovered: true });
    await publish(stack.pod(0), room, [3]);
    await eventually(() => client.received.length === 3);
    expect(dataOf(client)).toEqual([2, 1, 3]);
  });

  test('with a position that is none is refused, and the room is not joined', async () => {
    const room = someone('room');
    const [position] = (await publish(stack.pod(0), room, [0])) as [string];
    await using client = await join(stack.pod(0));
    const forged = position.replace(/:(\d+)-/, (_, ms) => `:${Number(ms) + 1000}-`);
    for (const from of [forged, position.replace(/-\d+$/, '-99999999'), 'x', 5, null, {}])
      expect(await client.request('subscribe', { room, from })).toMatchObject({ ok: false, code: 'bad_request' });
    await publish(stack.pod(0), room, [1]);
    await client.subscribe(room);
    await publish(stack.pod(0), room, [2]);
    await eventually(() => client.received.length > 0);
    expect(dataOf(client)).toEqual([2]);
  });
});
