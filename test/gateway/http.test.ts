import { randomUUID } from 'node:crypto';
import { connect as connectTcp } from 'node:net';
import { text } from 'node:stream/consumers';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parseFrom } from '../../src/wire/read-from.js';
import { type Pod, startPod, TEST_API_KEY } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ask, dataOf, join, publish, type Stack, someone, startStack } from './fixture.js';

const FREE = TEST_API_KEY;
const BOUND = 'a-bound-key-of-at-least-32-characters-000';

let stack: Stack;
let pod: Pod;

beforeAll(async () => {
  stack = await startStack(1, { env: { HOLDFAST_API_KEYS: `${FREE},${BOUND}:acme` } });
  pod = stack.pod(0);
});
afterAll(() => stack?.stop());

const post = (body: unknown, more: { key?: string; headers?: Record<string, string> } = {}) =>
  ask(pod, 'POST', '/v1/publish', { body, key: FREE, ...more });
const history = (room: string, query = '', key = FREE) =>
  ask(pod, 'GET', `/v1/history/${encodeURIComponent(room)}${query}`, { key });

test('says that it is there, and what it is', async () => {
  expect(await ask(pod, 'GET', '/health', { key: '' })).toEqual({ status: 200, body: { status: 'ok' } });
  const { status, body } = await ask(pod, 'GET', '/docs/json', { key: '' });
  expect(status).toBe(200);
  expect(body.openapi).toBe('3.1.0');
  expect(Object.keys(body.paths)).toEqual(expect.arrayContaining(['/health', '/v1/publish', '/v1/history/{room}']));
  expect(body.paths['/v1/publish'].post.security).toEqual([{ apiKey: [] }]);
  expect((await ask(pod, 'GET', '/docs/', { key: '' })).status).toBe(200);
});

test('a path that is none is 404 with the relay’s shape of an error', async () => {
  for (const path of ['/', '/v1', '/v1/nothing', '/v1/publish/x', '/metrics'])
    expect(await ask(pod, 'GET', path), path).toMatchObject({
      status: 404,
      body: { code: 'bad_request', retryable: false },
    });
});

describe('a call', () => {
  const call = (to: Pod, user: string, body: object) => ask(to, 'POST', `/v1/rpc/${user}/work`, { body, key: FREE });

  test('may be as large as the pod is told', async () => {
    const wide = await startPod({
      redisUrl: stack.redis.url,
      name: 'wide',
      env: { HOLDFAST_RPC_MAX_PAYLOAD_BYTES: '5000000' },
    });
    const sub = someone();
    try {
      expect(await call(wide, sub, { params: 'x'.repeat(4_900_000), waitForWorkerMs: 0 })).toMatchObject({
        body: { code: 'no_worker', mayHaveRun: false },
      });
      expect(await call(wide, sub, { params: 'x'.repeat(5_100_000) })).toMatchObject({
        status: 413,
        body: { code: 'payload_too_large', mayHaveRun: false },
      });
      expect(await call(wide, sub, { params: 'x'.repeat(10_000_000) })).toMatchObject({
        status: 413,
        body: { error: 'a request has at most 10000000 bytes' },
      });
    } finally {
      await wide.stop();
    }
  });

  test('that waits when its pod ends is told so, with the id by which another pod has its answer', async () => {
    const leaving = await startPod({ redisUrl: stack.redis.url, name: 'leaving', env: { HOLDFAST_DRAIN_MS: '300ms' } });
    const sub = someone();
    await using daemon = await join(pod, { sub });
    const requests: ((result: unknown) => void)[] = [];
    daemon.socket.on('rpc-request', (_request, reply) => requests.push(reply));
    await daemon.socket.emitWithAck('rpc-register', { method: 'work' });
    const waiting = call(leaving, sub, { params: 1 });
    await eventually(() => requests.length === 1);
    const [told] = await Promise.all([waiting, leaving.sigterm()]);
    expect(told).toMatchObject({
      status: 503,
      body: { code: 'unavailable', retryable: true, mayHaveRun: true, id: expect.stringMatching(/^c-/) },
    });
    const again = call(pod, sub, { params: 1, id: told.body.id });
    requests[0]?.('done');
    expect(await again).toEqual({ status: 200, body: { ok: true, result: 'done' } });
    expect(requests).toHaveLength(1);
  });
});

describe('publishing', () => {
  test('one event answers with its position, and it arrives', async () => {
    const room = someone('room');
    await using reader = await join(pod, { rooms: [room] });
    const { status, body } = await post({ room, event: 'e', data: { a: 1 }, unknown: true });
    expect(status).toBe(200);
    expect(body).toEqual({ ok: true, position: expect.stringMatching(/^[\w-]+:0:\d+-\d+$/) });
    await eventually(() => reader.received.length === 1);
    expect(reader.received[0]).toMatchObject({ event: 'e', data: { a: 1 }, position: body.position, meta: { room } });
  });

  test('a list answers item by item, in order, each for itself', async () => {
    const room = someone('room');
    await using reader = await join(pod, { rooms: [room] });
    const good = { room, event: 'e' };
    const list = [
      { ...good, data: 1 },
      { ...good, room: '' },
      null,
      [],
      'x',
      { ...good, event: 'presence' },
      { ...good, data: 2 },
    ];
    const { status, body } = await post(list);
    expect(status).toBe(200);
    expect(body.results.map((result: { ok: boolean }) => result.ok)).toEqual([
      true,
      false,
      false,
      false,
      false,
      false,
      true,
    ]);
    for (const result of body.results.filter(({ ok }: { ok: boolean }) => !ok))
      expect(result).toMatchObject({ code: 'bad_request', retryable: false, error: expect.any(String) });
    await eventually(() => reader.received.length === 2);
    expect(dataOf(reader)).toEqual([1, 2]);
  });

  test('a list has 1 to 100 items', async () => {
    const item = { room: 'r', event: 'e' };
    expect((await post([])).status).toBe(400);
    expect((await post(Array(101).fill(item))).status).toBe(400);
    expect((await post(Array(100).fill(item))).body.results).toHaveLength(100);
  });

  test('the same id, or Idempotency-Key, is accepted once per publisher', async () => {
    const room = someone('room');
    const id = randomUUID();
    const first = await post({ room, event: 'e', id });
    const again = await post({ room, event: 'e', id });
    expect(again.body).toEqual({ ok: true, position: first.body.position, duplicate: true });
    const other = randomUUID();
    const keyed = await post({ room, event: 'e' }, { headers: { 'idempotency-key': other } });
    const retried = await post({ room, event: 'e' }, { headers: { 'idempotency-key': other } });
    expect(retried.body).toEqual({ ok: true, position: keyed.body.position, duplicate: true });
    // its own id goes first
    const both = await post({ room, event: 'e', id: randomUUID() }, { headers: { 'idempotency-key': other } });
    expect(both.body.duplicate).toBeUndefined();
    expect((await post({ room, event: 'e' }, { headers: { 'idempotency-key': 'x'.repeat(201) } })).status).toBe(400);
    const list = await post([
      { room, event: 'e', id: 'twice' },
      { room, event: 'e', id: 'twice' },
    ]);
    expect(list.body.results[1]).toMatchObject({ ok: true, duplicate: true, position: list.body.results[0].position });
    expect((await history(room)).body.events).toHaveLength(4);
  });

  test('an ephemeral event has no position and no history', async () => {
    const room = someone('room');
    await using reader = await join(pod, { rooms: [room] });
    expect((await post({ room, event: 'e', ephemeral: true })).body).toEqual({ ok: true });
    await eventually(() => reader.received.length === 1);
    expect(reader.received[0]?.position).toBeUndefined();
    expect((await history(room)).body.events).toEqual([]);
  });
});

describe('keys', () => {
  test('without a known one nothing is read, however large, and the answer says so', async () => {
    for (const key of ['', 'x', `${FREE}x`, BOUND.slice(1)]) {
      const answer = await post({ room: 'r', event: 'e' }, { key });
      expect(answer).toMatchObject({ status: 401, body: { code: 'unauthorized', retryable: false } });
      expect(await post('{broken', { key })).toMatchObject({ status: 401 });
      expect(await history('r', '', key)).toMatchObject({ status: 401 });
    }
    expect(await post('x'.repeat(3_000_000), { key: 'x' })).toMatchObject({ status: 401 });
  });

  test('one that is bound to a tenant speaks for it alone', async () => {
    const room = someone('room');
    expect((await post({ room, event: 'e', data: 1 }, { key: BOUND })).status).toBe(200);
    expect((await post({ room, event: 'e', data: 2, tenant: 'acme' }, { key: BOUND })).status).toBe(200);
    const denied = { status: 403, body: { code: 'permission_denied' } };
    expect(await post({ room, event: 'e', tenant: 'other' }, { key: BOUND })).toMatchObject(denied);
    expect(await history(room, '?tenant=other', BOUND)).toMatchObject(denied);
    const { body } = await post([{ room, event: 'e', tenant: 'other' }], { key: BOUND });
    expect(body.results[0]).toMatchObject({ ok: false, code: 'permission_denied' });
    expect((await history(room)).body.events).toEqual([]);
    expect((await history(room, '?tenant=acme')).body.events).toHaveLength(2);
    expect((await history(room, '', BOUND)).body.events).toHaveLength(2);
  });
});

describe('a request that is none', () => {
  test.each([
    ['{', 400],
    ['null', 400],
    ['7', 400],
    ['"x"', 400],
    ['{}', 400],
    ['{"room":1,"event":"e"}', 400],
    ['{"room":"r","event":{}}', 400],
    ['{"room":"r","event":"e","id":5}', 400],
    ['{"room":"r","event":"e","tenant":[]}', 400],
    ['{"room":"r","event":"e","ephemeral":"yes"}', 400],
    ['{"__proto__":{"room":"r"},"event":"e"}', 400],
    [`{"room":"r","event":"e","data":"${'x'.repeat(1_000_001)}"}`, 413],
    [`{"room":"r","event":"e","data":"${'x'.repeat(2_100_000)}"}`, 413],
  ])('%# is refused with its code', async (body, status) => {
    const answer = await post(body);
    expect(answer.status).toBe(status);
    expect(answer.body).toMatchObject({ code: status === 413 ? 'payload_too_large' : 'bad_request', retryable: false });
    expect(answer.body.error).not.toMatch(/node_modules|at .*\(/);
  });

  test('of another type of content, or with a broken head, harms nobody', async () => {
    const answer = await post('a=b', { headers: { 'content-type': 'application/x-www-form-urlencoded' } });
    expect(answer).toMatchObject({ status: 400, body: { code: 'bad_request' } });
    for (const head of [
      'BOGUS\r\n\r\n',
      'GET / HTTP/9.9\r\n\r\n',
      `GET / HTTP/1.1\r\nX: ${'x'.repeat(100_000)}\r\n\r\n`,
    ]) {
      const socket = connectTcp(pod.port, '127.0.0.1');
      socket.on('error', () => {});
      socket.write(head);
      expect(await text(socket).catch(() => '')).toMatch(/^(HTTP\/1.1 4\d\d|$)/);
    }
    expect((await ask(pod, 'GET', '/health')).status).toBe(200);
  });
});

describe('history', () => {
  test('pages through a room, oldest first, past what is others’', async () => {
    const room = someone('room');
    for (let index = 0; index < 10; index++) {
      await publish(pod, room, [index]);
      await publish(pod, someone('noise'), Array(30).fill('noise'));
    }
    const seen: number[] = [];
    let from = 'earliest';
    for (let pages = 0; pages < 20; pages++) {
      const { status, body } = await history(room, `?limit=3&from=${encodeURIComponent(from)}`);
      expect(status).toBe(200);
      expect(body.events.length).toBeLessThanOrEqual(3);
      seen.push(...body.events.map(({ data }: { data: number }) => data));
      from = body.next;
      if (!body.more) break;
    }
    expect(seen).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    await publish(pod, room, ['new']);
    const { body } = await history(room, `?from=${encodeURIComponent(from)}`);
    expect(body.events).toMatchObject([{ data: 'new', event: 'e', meta: { room } }]);
  });

  test('loses nothing where a page of the log ends just with the limit', async () => {
    const room = someone('room');
    const [first] = await publish(pod, someone('noise'), [0]);
    await publish(
      pod,
      room,
      Array.from({ length: 1100 }, (_, index) => index),
    );
    const seen: number[] = [];
    let from = first as string;
    for (let isMore = true; isMore; ) {
      const { body } = await history(room, `?limit=500&from=${encodeURIComponent(from)}`);
      seen.push(...body.events.map(({ data }: { data: number }) => data));
      expect(body.gap).toBeUndefined();
      from = body.next;
      isMore = body.more;
    }
    expect(seen).toEqual(Array.from({ length: 1100 }, (_, index) => index));
  });

  test('says what was deleted, on the page that it belongs to; with an epoch that has ended, as one gap', async () => {
    const room = someone('room');
    const [first, second, third, fourth] = (await publish(pod, room, [1, 2, 3, 4])) as [string, string, string, string];
    await stack.client.xdel('hf:{events.0}:s', ...[second, fourth].map((text) => text.split(':')[2] as string));
    const offsetOf = (text: string): string | undefined => text.split('-').at(-1);
    const page = async (from: string, limit = 100) =>
      (await history(room, `?limit=${limit}&from=${encodeURIComponent(from)}`)).body;
    const one = await page(first, 1);
    expect(one.events).toMatchObject([{ data: 3 }]);
    expect(offsetOf(one.gap.from)).toBe(offsetOf(second));
    const last = (await publish(pod, room, [5]))[0] as string;
    const rest = await page(third);
    expect(rest.events).toMatchObject([{ data: 5, position: last }]);
    expect([rest.gap.from, rest.gap.to].map(offsetOf)).toEqual([offsetOf(fourth), offsetOf(fourth)]);
    const ended = `gone-out:0:1-7`;
    const { gap } = await page(ended, 1000);
    expect(gap).toMatchObject({ from: 'gone-out:0:1-1', reason: 'epoch' });
    expect(offsetOf(gap.to)).toBe(offsetOf(fourth));
  });

  test('begins at a position, a time, an age, the beginning or the end', async () => {
    const room = someone('room');
    const before = Date.now() - 1000;
    const [first] = (await publish(pod, room, [1, 2, 3])) as [string];
    const count = async (from: string): Promise<number> =>
      (await history(room, `?from=${encodeURIComponent(from)}`)).body.events.length;
    expect(await count('earliest')).toBe(3);
    expect(await count('latest')).toBe(0);
    expect(await count(first)).toBe(2);
    expect(await count(String(before))).toBe(3);
    expect(await count(new Date(before).toISOString())).toBe(3);
    expect(await count('10m')).toBe(3);
    expect(await count('0ms')).toBe(0);
    expect(await count('0001-01-01')).toBe(3);
    expect(await count('999999999d')).toBe(3);
    expect(await count('9999-01-01')).toBe(0);
  });

  test('a beginning that is none, or was made up, is refused', async () => {
    const room = someone('room');
    const [first] = (await publish(pod, room, [1])) as [string];
    const forged = first.replace(/:(\d+)-/, (_, ms) => `:${Number(ms) + 1000}-`);
    for (const from of [
      '',
      'x',
      '-1',
      '10',
      '2024-13-45',
      forged,
      first.replace(/-\d+$/, '-999999'),
      first.replace(':0:', ':5:'),
    ]) {
      if (from === '10') continue;
      const answer = await history(room, `?from=${encodeURIComponent(from)}`);
      expect(answer, from).toMatchObject({ status: 400, body: { code: 'bad_request' } });
    }
    for (const query of [
      '?limit=0',
      '?limit=1001',
      '?limit=x',
      '?from=a&from=b',
      '?tenant=',
      `?tenant=${'x'.repeat(201)}`,
    ])
      expect(await history(room, query), query).toMatchObject({ status: 400 });
    expect(await history('x'.repeat(201))).toMatchObject({ status: 400 });
  });

  test('rooms with separators and unicode have theirs', async () => {
    for (const room of ['a/b', '../x', '日本語', 'a?b#c', '%2F', 'x'.repeat(200)]) {
      await publish(pod, room, [room]);
      expect((await history(room)).body.events, room).toMatchObject([{ data: room }]);
    }
  });

  test('binary parts come as base64', async () => {
    const room = someone('room');
    await using publisher = await join(pod);
    await publisher.publish({ room, event: 'e', data: { file: Buffer.from('hello') } });
    const { body } = await history(room);
    expect(Buffer.from(body.events[0].attachments[0], 'base64').toString()).toBe('hello');
  });

  test('a beginning parses or it does not, and never throws', () => {
    const text = fc.oneof(
      fc.string(),
      fc.stringMatching(/^\d{1,20}(ms|s|m|h|d)?$/),
      fc.date({ noInvalidDate: true }).map((date) => date.toISOString()),
    );
    fc.assert(
      fc.property(text, (from) => {
        const start = parseFrom(from, 1_700_000_000_000);
        if (typeof start === 'object') expect(start.ms).toBeGreaterThanOrEqual(0);
      }),
      { numRuns: 2000 },
    );
  });
});
