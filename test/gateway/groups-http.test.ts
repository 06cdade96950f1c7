import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  createLog,
  type GroupReader,
  type Log,
  type LogOptions,
  type RunOptions,
} from '../../src/backend-log/index.js';
import { type Pod, startPod, TEST_API_KEY } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { type Answer, ask } from './fixture.js';

const BOUND = 'a-bound-key-of-at-least-32-characters-000';
const FAST: RunOptions = { leaseMs: 1000, backoffMs: 20, maxDeliveries: 2 };

let redis: RedisProcess;
let pod: Pod;
const logs: Log[] = [];

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  const env = { HOLDFAST_API_KEYS: `${TEST_API_KEY},${BOUND}:acme` };
  pod = await startPod({ redisUrl: redis.url, name: 'groups', env });
});
afterAll(async () => {
  await Promise.all(logs.map((log) => log.close()));
  await pod?.stop();
  await redis?.stop();
});

const get = (path: string, key?: string): Promise<Answer> => ask(pod, 'GET', path, { key });
const post = (path: string, body?: unknown, key?: string): Promise<Answer> => ask(pod, 'POST', path, { body, key });
const remove = (path: string): Promise<Answer> => ask(pod, 'DELETE', path);

let topics = 0;

function newLog(options: LogOptions = {}): { readonly topic: string; readonly log: Log } {
  const topic = `topic-${++topics}`;
  const log = createLog(redis.url, { topic, name: 'tester', ...options });
  logs.push(log);
  return { topic, log };
}

/** One by one, so that their offsets are certain. */
async function append(log: Log, count: number): Promise<string[]> {
  const positions: string[] = [];
  for (let n = 1; n <= count; n++) positions.push((await log.append({ event: 'order', data: { n } })).position);
  return positions;
}

async function handled(log: Log, group: string, options: RunOptions = {}): Promise<GroupReader> {
  const reader = log.group(group, { from: 'earliest' }).run(() => {}, { ...FAST, ...options });
  await reader.ready;
  return reader;
}

const lagOf = async (group: string, topic: string): Promise<number> =>
  (await get(`/v1/groups/${group}?topic=${topic}`)).body.partitions[0].lag;

/** A group that handled all of some entries and stopped. */
async function idleGroup(count: number): Promise<{ readonly topic: string; readonly log: Log; readonly at: string[] }> {
  const { topic, log } = newLog();
  const at = await append(log, count);
  const reader = await handled(log, 'billing');
  await eventually(async () => (await get(`/v1/groups/billing?topic=${topic}`)).body.partitions[0].lag === 0);
  await reader.stop();
  return { topic, log, at };
}

/** A group that gave up each of some entries, which goes on with `isHealed`. */
async function withDeadLetters(count: number) {
  const { topic, log } = newLog();
  const state = { isHealed: false, done: [] as unknown[] };
  const reader = log.group('billing', { from: 'earliest' }).run((entry) => {
    if (!state.isHealed) throw new Error('the printer is on fire');
    state.done.push(entry.data);
  }, FAST);
  await reader.ready;
  for (let n = 1; n <= count; n++)
    await log.append({ event: 'order', data: { n, bytes: Buffer.from('abc') }, id: `o${n}` });
  const path = `/v1/groups/billing/dead-letters`;
  const list = async (): Promise<Answer> => get(`${path}?topic=${topic}`);
  await eventually(async () => (await list()).body.count === count, { withinMs: 15_000, what: 'the dead letters' });
  return { topic, reader, state, path, list };
}

describe('an operator sees', () => {
  test('which topics there are, and what their partitions hold', async () => {
    const { topic, log } = newLog({ partitions: 2 });
    const [last] = (await append(log, 3)).slice(-1);
    expect((await get('/v1/topics')).body.topics).toContainEqual({ topic, partitions: 2 });
    const { status, body } = await get(`/v1/topics/${topic}`);
    expect({ status, topic: body.topic, count: body.partitions.length }).toEqual({ status: 200, topic, count: 2 });
    expect(body.partitions).toContainEqual(expect.objectContaining({ logEnd: last, entries: 3, first: 1 }));
  });

  test('a relay’s own group beside those of back ends, and who is active', async () => {
    const { topic, log } = newLog();
    await append(log, 1);
    await using reader = await handled(log, 'billing');
    expect((await get('/v1/groups')).body.groups).toEqual(
      expect.arrayContaining([
        { group: 'pod:groups', topic: 'events', state: 'active', members: 1 },
        { group: 'app:billing', topic, state: 'active', members: 1 },
      ]),
    );
    await reader.stop();
    expect((await get(`/v1/groups?topic=${topic}`)).body.groups).toEqual([
      { group: 'app:billing', topic, state: 'empty', members: 0 },
    ]);
  });

  test('where a group stands, by either of its names', async () => {
    const { topic, log, at } = await idleGroup(3);
    await append(log, 2);
    const answer = await get(`/v1/groups/billing?topic=${topic}`);
    expect(answer).toMatchObject({
      status: 200,
      body: {
        group: 'app:billing',
        topic,
        members: 0,
        partitions: [{ partition: 0, currentPosition: at[2], lag: 2, pending: 0, deadLetters: 0, redriven: 0 }],
      },
    });
    expect((await get(`/v1/groups/app:billing?topic=${topic}`)).body).toEqual(answer.body);
  });

  test('who reads for a group, and what each has in hand', async () => {
    const { topic, log } = newLog();
    let release = (): void => {};
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    const reader = log.group('slow', { from: 'earliest' }).run(() => held, FAST);
    await reader.ready;
    await append(log, 2);
    const members = async () => (await get(`/v1/groups/slow/members?topic=${topic}`)).body.members;
    await eventually(async () =>
      expect(await members()).toEqual([
        expect.objectContaining({ member: reader.id, state: 'live', mode: 'shared', pid: process.pid, pending: 2 }),
      ]),
    );
    release();
    await reader.stop();
  });
});

describe('a reset', () => {
  test('is a dry run unless it is to be executed', async () => {
    const { topic, at } = await idleGroup(3);
    const path = '/v1/groups/billing/reset-offsets';
    const wanted = { topic, toEarliest: true };
    const partitions = [{ partition: 0, currentPosition: at[2], lag: 3 }];
    expect(await post(path, wanted)).toMatchObject({ status: 200, body: { executed: false, members: [], partitions } });
    expect(await lagOf('billing', topic)).toBe(0);
    expect(await post(path, { ...wanted, execute: true })).toMatchObject({
      status: 200,
      body: { executed: true, partitions },
    });
    expect(await lagOf('billing', topic)).toBe(3);
  });

  test('goes to each place that can be named', async () => {
    const { topic, at } = await idleGroup(4);
    const lagAfter = async (place: object): Promise<number> => {
      const { body } = await post('/v1/groups/billing/reset-offsets', { topic, ...place, execute: true });
      return body.partitions[0].lag;
    };
    expect(await lagAfter({ toEarliest: true })).toBe(4);
    expect(await lagAfter({ shiftBy: 3 })).toBe(1);
    expect(await lagAfter({ shiftBy: -1 })).toBe(2);
    expect(await lagAfter({ toPosition: at[0] })).toBe(3);
    expect(await lagAfter({ toPosition: 2 })).toBe(2);
    expect(await lagAfter({ byDuration: 'PT1H' })).toBe(4);
    expect(await lagAfter({ toDatetime: '2100-01-01T00:00:00Z' })).toBe(0);
    expect(await lagAfter({ toDatetime: 0 })).toBe(4);
    expect(await lagAfter({ toLatest: true })).toBe(0);
  });

  test('and a delete of an active group are conflicts that name its members, and change nothing', async () => {
    const { topic, log } = newLog();
    await append(log, 3);
    await using reader = await handled(log, 'billing');
    await eventually(async () => (await lagOf('billing', topic)) === 0);
    const wanted = { topic, toEarliest: true };
    const conflict = { status: 409, body: { code: 'conflict', error: expect.stringContaining(reader.id) } };
    expect(await post('/v1/groups/billing/reset-offsets', { ...wanted, execute: true })).toMatchObject(conflict);
    expect(await remove(`/v1/groups/billing?topic=${topic}`)).toMatchObject(conflict);
    expect((await post('/v1/groups/billing/reset-offsets', wanted)).body.members).toEqual([reader.id]);
    expect(await lagOf('billing', topic)).toBe(0);
  });

  test('makes a group that there isn’t', async () => {
    const { topic, log } = newLog();
    await append(log, 2);
    const { body } = await post('/v1/groups/new/reset-offsets', { topic, toEarliest: true, execute: true });
    expect(body.partitions).toEqual([{ partition: 0, newPosition: expect.any(String), lag: 2 }]);
    expect(await lagOf('new', topic)).toBe(2);
  });

  test('says which field is wrong', async () => {
    const { topic } = await idleGroup(1);
    const wrong = async (body: object, field: string): Promise<void> =>
      expect(await post('/v1/groups/billing/reset-offsets', { topic, execute: true, ...body }), field).toMatchObject({
        status: 400,
        body: { code: 'bad_request', error: expect.stringContaining(field) },
      });
    await wrong({}, 'toEarliest, toLatest, toDatetime, byDuration, shiftBy, toPosition');
    await wrong({ toEarliest: true, toLatest: true }, 'wants one of');
    await wrong({ toDatetime: 'yesterday' }, 'toDatetime');
    await wrong({ byDuration: 'long' }, 'byDuration');
    await wrong({ shiftBy: 1.5 }, 'shiftBy');
    await wrong({ toPosition: 'there' }, 'toPosition');
    await wrong({ toEarliest: true, exectue: true }, 'exectue');
    expect(await lagOf('billing', topic)).toBe(0);
  });

  test('and a delete of a relay’s group are refused', async () => {
    const refused = { status: 400, body: { code: 'bad_request', error: expect.stringContaining('relay') } };
    const wanted = { toEarliest: true, execute: true };
    expect(await post('/v1/groups/pod:groups/reset-offsets', wanted)).toMatchObject(refused);
    expect(await remove('/v1/groups/pod:groups')).toMatchObject(refused);
  });
});

test('an idle group is deleted with what it left, and is then not there', async () => {
  const { topic } = await idleGroup(2);
  const path = `/v1/groups/billing?topic=${topic}`;
  expect(await remove(path)).toEqual({
    status: 200,
    body: { group: 'app:billing', topic, pending: 0, deadLetters: 0 },
  });
  expect(await remove(path)).toMatchObject({ status: 404 });
  expect((await get(`/v1/groups?topic=${topic}`)).body.groups).toEqual([]);
});

test('garbage is shown, and goes when that is executed', async () => {
  const { topic, log } = newLog();
  await append(log, 1);
  // read by hand, as somebody who never says goodbye
  const admin = new Redis(redis.url);
  const stream = `hf:{${topic}.0}:s`;
  await admin.xgroup('CREATE', stream, 'app:forgotten', '0');
  await admin.xreadgroup('GROUP', 'app:forgotten', 'nobody', 'COUNT', 1, 'STREAMS', stream, '>');
  admin.disconnect();
  const collect = (more: object): Promise<Answer> => post('/v1/groups/gc', { topic, ...more });
  expect((await collect({})).body).toEqual({ executed: false, garbage: [] });
  const found = [{ what: 'group', group: 'app:forgotten', topic, silentMs: expect.any(Number) }];
  await eventually(async () =>
    expect((await collect({ silentFor: '1ms' })).body).toEqual({ executed: false, garbage: found }),
  );
  expect((await collect({ silentFor: 'PT0.001S', execute: true })).body).toEqual({ executed: true, garbage: found });
  expect((await get(`/v1/groups?topic=${topic}`)).body.groups).toEqual([]);
  expect(await collect({ silentFor: 'long' })).toMatchObject({
    status: 400,
    body: { error: expect.stringContaining('silentFor') },
  });
});

describe('dead letters', () => {
  test('are listed without their data, and shown with it and with how they failed', async () => {
    const { topic, reader, path, list } = await withDeadLetters(2);
    const { body } = await list();
    expect(body).toMatchObject({ count: 2, dropped: 0 });
    expect(body.deadLetters).toHaveLength(2);
    const [first] = body.deadLetters;
    const common = { id: expect.stringMatching(/^0:\d+-\d+$/), partition: 0, deliveries: 2, reason: 'error' };
    expect(first).toMatchObject({ ...common, event: 'order', error: expect.stringContaining('on fire') });
    expect(first.data).toBeUndefined();
    expect((await get(`${path}?topic=${topic}&limit=1`)).body).toMatchObject({ count: 2, deadLetters: [first] });
    const shown = await get(`${path}/${first.id}?topic=${topic}`);
    // handlers run at once, so either may have been given up first
    const other = await get(`${path}/${body.deadLetters[1].id}?topic=${topic}`);
    const { n } = shown.body.data;
    expect([n, other.body.data.n].sort()).toEqual([1, 2]);
    expect(shown).toMatchObject({
      status: 200,
      body: {
        ...common,
        event: 'order',
        data: { n, bytes: Buffer.from('abc').toString('base64') },
        tenant: 'default',
        rooms: [],
        publisher: 'tester',
        eventId: `o${n}`,
      },
    });
    expect(shown.body.failures).toHaveLength(2);
    expect(shown.body.failures[1]).toMatchObject({ member: reader.id, reason: 'error' });
    await reader.stop();
  });

  test('come back once to an active group', async () => {
    const { topic, reader, state, path, list } = await withDeadLetters(3);
    state.isHealed = true;
    const [first, second] = (await list()).body.deadLetters;
    expect(await post(`${path}/redrive`, { topic, ids: [first.id, first.id, '0:1-1'] })).toEqual({
      status: 200,
      body: { redriven: [first.id], missing: ['0:1-1'] },
    });
    await eventually(() => state.done.length === 1, { what: 'the first to come back' });
    expect(await post(`${path}/redrive`, { topic, ids: [first.id] })).toMatchObject({ body: { redriven: [] } });
    const { body } = await post(`${path}/redrive`, { topic, all: true });
    expect(body.redriven).toHaveLength(2);
    expect(body.redriven).toContain(second.id);
    await eventually(async () => {
      expect(state.done.map((data) => (data as { n: number }).n).sort()).toEqual([1, 2, 3]);
      expect((await list()).body.count).toBe(0);
    });
    await reader.stop();
    expect(state.done).toHaveLength(3);
  });

  test('are dropped by name or all at once, and stay when neither is said', async () => {
    const { topic, reader, path, list } = await withDeadLetters(3);
    await reader.stop();
    const bad = { status: 400, body: { code: 'bad_request' } };
    expect(await post(`${path}/drop`, { topic })).toMatchObject(bad);
    expect(await post(`${path}/drop`, { topic, all: true, ids: ['0:1-1'] })).toMatchObject(bad);
    expect(await post(`${path}/drop`, { topic, ids: ['everything'] })).toMatchObject({
      ...bad,
      body: { error: expect.stringContaining('ids') },
    });
    expect((await list()).body.count).toBe(3);
    const [first] = (await list()).body.deadLetters;
    expect((await post(`${path}/drop`, { topic, ids: [first.id] })).body).toEqual({ dropped: [first.id], missing: [] });
    expect((await post(`${path}/drop`, { topic, all: true })).body.dropped).toHaveLength(2);
    expect((await list()).body).toMatchObject({ count: 0, deadLetters: [] });
  });
});

describe('a trim', () => {
  test('says what it would cut, and cuts it when it is executed', async () => {
    const { topic, at } = await idleGroup(4);
    await post('/v1/groups/late/reset-offsets', { topic, toEarliest: true, execute: true });
    const trim = (body: object): Promise<Answer> => post(`/v1/topics/${topic}/trim`, body);
    const partitions = [
      { partition: 0, first: 1, newFirst: 3, entries: 2, unread: [{ group: 'app:late', entries: 2 }] },
    ];
    expect(await trim({ to: at[1] })).toEqual({ status: 200, body: { topic, executed: false, partitions } });
    expect((await get(`/v1/topics/${topic}`)).body.partitions[0]).toMatchObject({ first: 1, entries: 4 });
    expect((await trim({ to: at[1], execute: true })).body).toEqual({ topic, executed: true, partitions });
    expect((await get(`/v1/topics/${topic}`)).body.partitions[0]).toMatchObject({ first: 3, entries: 2 });
    for (const to of ['earliest', 'there'])
      expect(await trim({ to, execute: true })).toMatchObject({
        status: 400,
        body: { code: 'bad_request', error: expect.stringContaining('to:') },
      });
  });
});

test('what is not there is 404, and nothing is made by asking', async () => {
  const { topic, log } = newLog();
  await append(log, 1);
  const missing: [string, string, unknown?][] = [
    ['GET', '/v1/topics/nothing'],
    ['POST', '/v1/topics/nothing/trim', { to: 'latest', execute: true }],
    ['GET', '/v1/groups?topic=nothing'],
    ['GET', `/v1/groups/nobody?topic=${topic}`],
    ['GET', `/v1/groups/nobody/members?topic=${topic}`],
    ['DELETE', `/v1/groups/nobody?topic=${topic}`],
    ['POST', '/v1/groups/nobody/reset-offsets', { topic: 'nothing', toLatest: true, execute: true }],
    ['GET', `/v1/groups/nobody/dead-letters?topic=${topic}`],
    ['GET', `/v1/groups/nobody/dead-letters/0:1-1?topic=${topic}`],
    ['POST', '/v1/groups/nobody/dead-letters/redrive', { topic, all: true }],
    ['POST', '/v1/groups/nobody/dead-letters/drop', { topic, all: true }],
  ];
  for (const [method, path, body] of missing)
    expect(await ask(pod, method, path, { body }), `${method} ${path}`).toMatchObject({
      status: 404,
      body: { code: 'bad_request', retryable: false, error: expect.stringMatching(/"no(thing|body)"/) },
    });
  expect((await get('/v1/topics')).body.topics.map((each: { topic: string }) => each.topic)).not.toContain('nothing');
  expect((await get(`/v1/groups?topic=${topic}`)).body.groups).toEqual([]);
});

test('a key that is bound to one tenant opens none of these routes', async () => {
  const { body } = await get('/docs/json');
  const routes = Object.entries(body.paths as Record<string, object>)
    .filter(([path]) => /^\/v1\/(groups|topics)/.test(path))
    .flatMap(([path, methods]) => Object.keys(methods).map((method) => [method.toUpperCase(), path] as const));
  expect(routes).toHaveLength(13);
  for (const [method, path] of routes)
    expect((await ask(pod, method, path, { key: BOUND })).status, `${method} ${path}`).toBe(403);
});

test('while Redis is away each of them says so within 3 s, and they go on when it is back', async () => {
  const { topic } = await idleGroup(1);
  const path = `/v1/groups/billing?topic=${topic}`;
  redis.pause();
  try {
    const from = performance.now();
    expect(await get(path)).toMatchObject({ status: 503, body: { code: 'unavailable', retryable: true } });
    expect(performance.now() - from).toBeLessThan(3500);
    const reset = { topic, toEarliest: true, execute: true };
    expect(await post('/v1/groups/billing/reset-offsets', reset)).toMatchObject({ status: 503 });
  } finally {
    redis.resume();
  }
  await eventually(async () => (await get(path)).status === 200, { withinMs: 10_000 });
});

test('a pod that an operator has asked ends in order', async () => {
  await using own = await startPod({ redisUrl: redis.url, name: 'asked', env: { HOLDFAST_DRAIN_MS: '100' } });
  expect((await ask(own, 'GET', '/v1/groups')).status).toBe(200);
  const clients = async (): Promise<string> => {
    const admin = new Redis(redis.url);
    const list = (await admin.client('LIST')) as string;
    admin.disconnect();
    return list;
  };
  expect(await clients()).toContain(encodeURIComponent('holdfast:asked:operators'));
  expect(await own.sigterm()).toMatchObject({ code: 0 });
  expect(own.logs.filter((line) => line.includes('stop_failed'))).toEqual([]);
});
