import { mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { fileStore } from '../../src/client/file-store.js';
import { memoryStore, type RelayEvent } from '../../src/client/index.js';
import { sleep } from '../../src/core/sleep.js';
import { parsePosition } from '../../src/wire/position.js';
import { publish, type Stack, startStack } from '../gateway/fixture.js';
import { Child } from '../harness/child.js';
import { type Haproxy, startHaproxy } from '../harness/haproxy.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { collect, live, numbers, open, someone, tokens } from './fixture.js';

const CHILD = fileURLToPath(new URL('child.mjs', import.meta.url));

let stack: Stack;
/** One pod, 320 entries at most, and no memory of older ones. */
let small: Stack;
let dir: string;

beforeAll(async () => {
  const env = { HOLDFAST_GATEWAY_RECOVERY_WINDOW_MS: '2s' };
  const tight = { HOLDFAST_LOG_MAX_ENTRIES: '160', HOLDFAST_GATEWAY_RING_BYTES: '65536' };
  dir = await mkdtemp(join(tmpdir(), 'holdfast-client-'));
  // one after the other: on a busy machine many at once are slow to start
  stack = await startStack(2, { env });
  small = await startStack(1, { env: tight });
});
afterAll(async () => {
  await Promise.all([stack?.stop(), small?.stop()]);
  await rm(dir, { recursive: true, force: true });
});

const balancer = (pods: readonly Pod[]): Promise<Haproxy> =>
  startHaproxy({ backends: pods.map(({ port, opsPort }) => ({ host: '127.0.0.1', port, opsPort })) });

/** Publishes 1, 2, 3 … until it is told to stop. @returns how many */
function stream(pod: Pod, room: string): () => Promise<number> {
  let count = 0;
  let isOver = false;
  const running = (async () => {
    while (!isOver) {
      await publish(pod, room, [++count]);
      await sleep(5);
    }
  })();
  return async () => {
    isOver = true;
    await running;
    return count;
  };
}

test('reconnects bring everything once, and nothing is fetched anew for them', async () => {
  const room = someone('room');
  const { client, resyncs, gaps } = open(stack.pod(0).url);
  await using _ = client;
  const got = collect(client, room);
  await got.subscription.ready;
  const stop = stream(stack.pod(1), room);
  for (let cut = 1; cut <= 3; cut++) {
    const before = got.events.length;
    await eventually(() => client.status.state === 'live' && got.events.length > before + 3, { withinMs: 10_000 });
    client.socket.io.engine.close();
  }
  const count = await stop();
  await eventually(() => got.events.length >= count, { withinMs: 10_000 });
  expect(got.data()).toEqual(numbers(1, count));
  expect({ resyncs, gaps }).toEqual({ resyncs: ['new'], gaps: [] });
});

// these wait more than they work
test.concurrent('SIGKILL of a pod, and SIGTERM of the next, cost clients behind a balancer nothing', async () => {
  await using own = await startStack(3, { env: { HOLDFAST_DRAIN_MS: '600ms' } });
  await using haproxy = await balancer(own.pods);
  await eventually(async () => (await haproxy.up()).every((isUp) => isUp));
  const clients = await Promise.all(
    numbers(1, 6).map(async () => {
      const told = open(haproxy.url);
      const reasons: string[] = [];
      told.client.on('status', (status) => status.state === 'connecting' && reasons.push(status.error?.code ?? ''));
      const got = collect(told.client, 'room');
      await told.client.live();
      return { ...told, got, reasons };
    }),
  );
  const all = (holds: (one: (typeof clients)[number]) => boolean) =>
    eventually(() => clients.every(holds), { withinMs: 15_000 });
  const stop = stream(own.pod(2), 'room');
  await own.pod(0).sigkill();
  await all(({ client }) => client.status.state === 'live');
  const exit = own.pod(1).sigterm();
  await eventually(async () => (await own.pod(2).metrics()).get('holdfast_connections') === 6, { withinMs: 15_000 });
  await all(({ client }) => client.status.state === 'live');
  expect((await exit).code).toBe(0);
  const count = await stop();
  await all(({ got }) => got.events.length >= count);
  for (const { client, got, resyncs, gaps, errors } of clients) {
    expect(got.data()).toEqual(numbers(1, count));
    expect({ resyncs, gaps, errors }).toEqual({ resyncs: ['new'], gaps: [], errors: [] });
    await client.close();
  }
  // half of them were on the pod that said that it leaves
  expect(clients.flatMap(({ reasons }) => reasons)).toContain('shutting_down');
});

test.concurrent('a client whose session the relay has forgotten goes on from its place, without a word to the application', async () => {
  const room = someone('room');
  await using proxy = await startTcpProxy(stack.pod(0).port);
  const { client, resyncs, gaps } = open(`http://127.0.0.1:${proxy.port}`);
  await using _ = client;
  const [got, quiet] = [collect(client, room), collect(client, someone('quiet'))];
  await Promise.all([got.subscription.ready, quiet.subscription.ready]);
  await publish(stack.pod(1), room, [1, 2]);
  await eventually(() => got.events.length === 2);
  const before = client.socket.id;
  const { _pid: pid } = client.socket as unknown as { _pid: string };
  const record = async (): Promise<boolean> => (await stack.client.keys(`hf:resume:*${pid}*`)).length > 0;
  expect(await record()).toBe(true);
  await proxy.refuse(true);
  proxy.rst();
  await publish(stack.pod(1), room, [3, 4]);
  await eventually(async () => !(await record()), { withinMs: 15_000, what: 'the relay to forget the client' });
  await proxy.refuse(false);
  await live(client);
  expect(client.socket.id).not.toBe(before);
  await publish(stack.pod(1), room, [5]);
  await publish(stack.pod(1), quiet.subscription.room, [6]);
  await eventually(() => got.events.length === 5 && quiet.events.length === 1);
  expect(got.data()).toEqual([1, 2, 3, 4, 5]);
  expect({ resyncs, gaps }).toEqual({ resyncs: ['new'], gaps: [] });
});

test.concurrent('a program that is killed again and again handles everything in order, and again only what it had just handled', async () => {
  const room = someone('room');
  const args = [CHILD, stack.pod(0).url, await token({ sub: someone(), caps: ALL_CAPS }), join(dir, 'place'), room];
  const start = (): Child => new Child(process.execPath, { args });
  const told = (child: Child, what: string): unknown[] =>
    child.lines.map((line) => JSON.parse(line)).flatMap(([kind, value]) => (kind === what ? [value] : []));
  const runs: Child[] = [start()];
  await eventually(() => told(runs[0] as Child, 'status').includes('live'), { withinMs: 10_000 });
  const stop = stream(stack.pod(1), room);
  for (let kill = 0; kill < 3; kill++) {
    const child = runs.at(-1) as Child;
    await eventually(() => told(child, 'event').length >= 10, { withinMs: 10_000 });
    await child.kill();
    runs.push(start());
  }
  const count = await stop();
  const last = runs.at(-1) as Child;
  await eventually(() => told(last, 'event').at(-1) === count, { withinMs: 10_000 });
  last.signal('SIGTERM');
  expect(await last.exit).toMatchObject({ code: 0 });
  let handled = 0;
  for (const run of runs) {
    const numbersSeen = told(run, 'event') as number[];
    const first = numbersSeen[0] as number;
    expect(first).toBeLessThanOrEqual(handled + 1);
    expect(numbersSeen).toEqual(numbers(first, numbersSeen.at(-1) as number));
    handled = numbersSeen.at(-1) as number;
    expect(told(run, 'error')).toEqual([]);
  }
  expect(handled).toBe(count);
  expect(runs.flatMap((run) => told(run, 'resync'))).toEqual(['new']);
  expect(runs.flatMap((run) => told(run, 'gap'))).toEqual([]);
});

test('what was trimmed while a client was away is a gap and one resync, and what is left comes', async () => {
  const room = someone('room');
  await using proxy = await startTcpProxy(small.pod(0).port);
  const { client, resyncs, gaps } = open(`http://127.0.0.1:${proxy.port}`);
  await using _ = client;
  const got = collect(client, room);
  await got.subscription.ready;
  await publish(small.pod(0), room, [0]);
  await eventually(() => got.events.length === 1);
  await proxy.refuse(true);
  proxy.rst();
  const missed = await publish(small.pod(0), room, numbers(1, 1000));
  await proxy.refuse(false);
  await live(client);
  await publish(small.pod(0), room, ['live']);
  await eventually(() => got.data().at(-1) === 'live', { withinMs: 15_000 });
  expect(resyncs).toEqual(['new', 'gap']);
  expect(gaps[0]?.reason).toBe('trimmed');
  expect(parsePosition(gaps[0]?.from)?.offset).toBe(parsePosition(missed[0])?.offset);
  const gone = gaps.reduce((most, { to }) => Math.max(most, parsePosition(to)?.offset ?? 0), 0);
  const left = missed.filter((position) => (parsePosition(position)?.offset ?? 0) > gone).length;
  expect(got.data()).toEqual([0, ...numbers(1001 - left, 1000), 'live']);
});

test('a wiped Redis is a gap of an epoch, and what a publisher sends again is given once', async () => {
  const room = someone('room');
  const { client, resyncs, gaps } = open(small.pod(0).url);
  await using _ = client;
  await using publisher = open(small.pod(0).url).client;
  const got = collect(client, room);
  await got.subscription.ready;
  await publisher.publish(room, 'e', 'kept', { id: 'a' });
  await eventually(() => got.events.length === 1);
  await small.client.flushall();
  await eventually(() => gaps.length > 0, { withinMs: 10_000, what: 'the gap' });
  expect(gaps[0]).toMatchObject({ reason: 'epoch' });
  expect(resyncs).toEqual(['new', 'gap']);
  // the same event again, and another one that has its id
  expect((await publisher.publish(room, 'e', 'kept', { id: 'a' })).isDuplicate).toBe(false);
  await using other = open(small.pod(0).url).client;
  await other.publish(room, 'e', 'other', { id: 'a' });
  await eventually(() => got.events.length >= 2);
  expect(got.data()).toEqual(['kept', 'other']);
});

test('a catch-up that is cut again and again, under live events and a small buffer, keeps its order and doubles nothing', async () => {
  const [room, busy] = [someone('room'), someone('busy')];
  const [first] = await publish(stack.pod(1), room, numbers(0, 400));
  await using proxy = await startTcpProxy(stack.pod(0).port);
  const { client, resyncs, gaps } = open(`http://127.0.0.1:${proxy.port}`, {
    bufferSize: 50,
    reconnectDelayMaxMs: 100,
  });
  await using _ = client;
  collect(client, busy);
  await client.live();
  const stops = [room, busy].map((name) => {
    let next = name === room ? 401 : 1;
    let isOver = false;
    const running = (async () => {
      while (!isOver) {
        await publish(stack.pod(1), name, [next++]);
        await sleep(10);
      }
    })();
    return async () => {
      isOver = true;
      await running;
      return next - 1;
    };
  });
  const seen: unknown[] = [];
  client.subscribe(room, {
    from: first,
    onEvent: async ({ data }) => {
      seen.push(data);
      if (seen.length % 100 === 50 && seen.length < 400) proxy.rst();
      await sleep(1);
    },
  });
  await eventually(() => seen.length > 420, { withinMs: 30_000, what: 'the catch-up to be done' });
  const [last] = await Promise.all(stops.map((stop) => stop()));
  await eventually(() => seen.includes(last), { withinMs: 20_000 });
  expect(seen).toEqual(numbers(1, last as number));
  expect({ resyncs, gaps }).toEqual({ resyncs: ['new'], gaps: [] });
});

test('five hundred rooms are subscribed at the rate that the relay lets them, also after it has forgotten the client', async () => {
  const rooms = numbers(1, 500).map(() => someone('many'));
  const { client, errors, resyncs } = open(stack.pod(0).url);
  await using _ = client;
  const all = rooms.map((room) => collect(client, room));
  await Promise.all(all.map(({ subscription }) => subscription.ready));
  await client.live();
  // it forgets at once who leaves by a disconnect
  (client.socket as unknown as { packet(packet: object): void }).packet({ type: 1 });
  client.socket.io.engine.close();
  await eventually(() => client.status.state === 'connecting', { withinMs: 10_000 });
  await publish(stack.pod(1), rooms[499] as string, ['missed']);
  await eventually(() => client.status.state === 'live', { withinMs: 20_000 });
  expect(client.socket.recovered).toBeFalsy();
  await eventually(() => all[499]?.events.length === 1);
  expect({ errors, resyncs }).toEqual({ errors: [], resyncs: ['new'] });
});

test('a client that was closed goes on where it was, each event once, in rooms of both kinds', async () => {
  const [room, sub] = [someone('room'), someone()];
  const store = memoryStore();
  const run = () => {
    const told = open(stack.pod(0).url, { store, token: tokens({ sub }) });
    return { ...told, got: collect(told.client, room), own: collect(told.client, `user:${sub}`) };
  };
  const first = run();
  await first.client.live();
  await publish(stack.pod(1), room, [1, 2]);
  await publish(stack.pod(1), `user:${sub}`, ['a']);
  await eventually(() => first.got.events.length === 2 && first.own.events.length === 1);
  await first.client.close();

  await publish(stack.pod(1), room, [3]);
  await publish(stack.pod(1), `user:${sub}`, ['b', 'c']);
  await publish(stack.pod(1), room, [4]);
  const second = run();
  await second.client.live();
  await publish(stack.pod(1), room, [5]);
  await publish(stack.pod(1), `user:${sub}`, ['d']);
  await eventually(() => second.got.events.length >= 3 && second.own.events.length >= 3);
  expect(second.got.data()).toEqual([3, 4, 5]);
  expect(second.own.data()).toEqual(['b', 'c', 'd']);
  expect(second.resyncs).toEqual([]);
  await second.client.close();

  const third = run();
  await third.client.live();
  await publish(stack.pod(1), room, [6]);
  await eventually(() => third.got.events.length >= 1);
  expect(third.got.data()).toEqual([6]);
  await third.client.close();
});

test('a place does not pass what a handler has not finished', async () => {
  const [slow, quick] = [someone('slow'), someone('quick')];
  const store = memoryStore();
  const first = open(stack.pod(0).url, { store });
  const seen: unknown[] = [];
  const onEvent = ({ data }: RelayEvent) => {
    seen.push(data);
    return new Promise(() => {});
  };
  first.client.subscribe(slow, { onEvent });
  const got = collect(first.client, quick);
  await first.client.live();
  await publish(stack.pod(1), slow, [1, 2]);
  await publish(stack.pod(1), quick, [3]);
  await eventually(() => got.events.length === 1 && seen.length === 1);
  await first.client.close();
  await using second = open(stack.pod(0).url, { store }).client;
  const again = collect(second, slow);
  await eventually(() => again.events.length === 2);
  expect(again.data()).toEqual([1, 2]);
});

test('a place goes on when a room was left with an event in hand', async () => {
  const [once, room] = [someone('once'), someone('room')];
  const store = memoryStore();
  await using client = open(stack.pod(0).url, { store }).client;
  const [subscription, got] = [client.subscribe(once), collect(client, room)];
  await client.live();
  await publish(stack.pod(1), once, [1]);
  expect((await subscription.next()).value?.data).toBe(1);
  await subscription.unsubscribe();
  const [position] = await publish(stack.pod(1), room, [2]);
  await eventually(() => got.events.length === 1);
  await eventually(async () => JSON.parse((await store.load()) ?? '{}').position === position);
});

test('a room that is unsubscribed is forgotten, one that is subscribed late is not', async () => {
  const [left, late] = [someone('left'), someone('late')];
  const store = memoryStore();
  const first = open(stack.pod(0).url, { store }).client;
  await Promise.all([first.subscribe(left), first.subscribe(late)].map(({ ready }) => ready));
  await first.subscribe(left).unsubscribe();
  for (const subscription of [first.subscribe(left)]) await subscription.unsubscribe();
  await first.close();
  await publish(stack.pod(1), late, [1]);
  await publish(stack.pod(1), left, [1]);
  await using second = open(stack.pod(0).url, { store }).client;
  await second.live();
  await publish(stack.pod(1), late, [2]);
  const got = collect(second, late);
  await eventually(() => got.events.length === 2);
  expect(got.data()).toEqual([1, 2]);
});

test('a place that this log never held is told as lost, and the client begins anew', async () => {
  const room = someone('room');
  const [position] = await publish(stack.pod(0), room, [0]);
  const ahead = (position as string).replace(
    /\d+-(\d+)$/,
    (_, offset) => `9999999999999-${Number(offset) + 1_000_000}`,
  );
  const store = memoryStore();
  await store.save(JSON.stringify({ v: 1, position: ahead, rooms: { [room]: null } }));
  const { client, resyncs, errors } = open(stack.pod(0).url, { store });
  await using _ = client;
  const got = collect(client, room);
  await client.live();
  await publish(stack.pod(0), room, [1]);
  await eventually(() => got.events.length === 1);
  expect(got.data()).toEqual([1]);
  await eventually(() => resyncs.length > 0);
  expect([...new Set(resyncs)]).toEqual(['lost']);
  expect(errors).toEqual([]);
});

test('a damaged file is told as lost, and is whole again afterwards', async () => {
  const path = join(dir, 'damaged');
  await writeFile(path, '{"v":1,"position":"X2r');
  const { client, resyncs, errors } = open(stack.pod(0).url, { store: fileStore(path) });
  const got = collect(client, someone('room'));
  await client.live();
  expect(resyncs).toEqual(['lost']);
  expect(errors).toMatchObject([{ code: 'position_lost' }]);
  await publish(stack.pod(0), got.subscription.room, [1]);
  await eventually(() => got.events.length === 1);
  await client.close();
  expect(JSON.parse(await readFile(path, 'utf8'))).toMatchObject({ v: 1, position: got.events[0]?.position });
  expect((await stat(path)).mode & 0o777).toBe(0o600);
});

test('what a kill left of a write is overwritten, not left beside the file', async () => {
  const folder = await mkdtemp(join(dir, 'drafts-'));
  const path = join(folder, 'place');
  const store = fileStore(path);
  await store.save('the first');
  await writeFile(`${path}.draft`, 'x'.repeat(1000));
  await store.save('next');
  expect(await store.load()).toBe('next');
  expect(await readdir(folder)).toEqual(['place']);
});

test('a store that fails is told once, and the client goes on', async () => {
  const { client, errors } = open(stack.pod(0).url, { store: fileStore(join(dir, 'no', 'folder')) });
  const got = collect(client, someone('room'));
  await client.live();
  await publish(stack.pod(0), got.subscription.room, numbers(1, 5));
  await eventually(() => got.events.length === 5 && errors.length > 0);
  await client.close();
  expect(errors).toMatchObject([{ code: 'internal', message: 'the place cannot be stored' }]);
});

test('what is subscribed, left and closed before a store was read leaves it as it was', async () => {
  const before = JSON.stringify({ v: 1, position: null, rooms: { kept: null } });
  let text = before;
  const store = {
    load: async () => text,
    save: (next: string) => {
      text = next;
    },
  };
  const { client } = open(stack.pod(0).url, { store });
  void client.subscribe(someone('room')).unsubscribe();
  await client.close();
  expect(text).toBe(before);
});
