import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type Client, connect } from '../harness/client.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { ask, dataOf, join, publish, type Stack, someone, startStack } from './fixture.js';
import { RawClient } from './raw-client.js';

let stack: Stack;
let pod: Pod;
let auth: { token: string };
let bystander: Client;
let pid: number;

beforeAll(async () => {
  stack = await startStack(1, { env: { HOLDFAST_GATEWAY_MESSAGES_PER_SECOND: '2000' } });
  pod = stack.pod(0);
  pid = pod.pid;
  auth = { token: await token({ sub: 'bad', caps: ALL_CAPS }) };
  bystander = await join(pod, { rooms: ['calm'] });
});
afterAll(async () => {
  await bystander?.stop();
  await stack?.stop();
});

let expected = 0;
beforeEach(() => {
  expected = bystander.received.length;
});

// whatever a test did: the same process serves the same other client
afterEach(async () => {
  await publish(pod, 'calm', ['still here']);
  await eventually(() => bystander.received.length > expected);
  expect(bystander.disconnects).toEqual([]);
  expect(pod.pid).toBe(pid);
  expect(pod.isRunning).toBe(true);
  expect(pod.logs.filter((line) => /_failed|"level":(50|60)|Unhandled/.test(line))).toEqual([]);
});

const EVENTS = ['subscribe', 'unsubscribe', 'publish', 'auth-refresh', 'rpc-call', 'rpc-register', 'presence-get'];
const VALUES = ['null', '1', 'true', '"x"', '[]', '[[]]', '{}', '{"room":null}', '{"room":{}}', '{"token":[]}'];

describe('frames', () => {
  test.each([
    '42["rpc-call",{}]',
    '42["rpc-call"]',
    '42["error"]',
    '42["__proto__",1]',
    '42["constructor",1]',
    '42["rpc-call",{"__proto__":{"x":1}}]',
    '42["publish",{"__proto__":{"room":"calm","event":"e"}}]',
    '42[]',
    '42[1]',
    '42["",1]',
    '42{"a":1}',
    '42["connect"]',
    '42["disconnect"]',
    '42["newListener",1]',
    '42',
    '429999999999999999999["publish",{}]',
    '42-1["publish",{}]',
    '43999[]',
    '430',
    '44"x"',
    '444"x"',
    '45',
    '4599999999-["e",{}]',
    '450-["e"]',
    '45-["e"]',
    '451-["e",{"_placeholder":true,"num":"splice"}]',
    '451-["e",{"_placeholder":true,"num":99}]',
    '46["x"]',
    '47',
    '4',
    '',
    '9',
    '2',
    '3',
    '5',
    '6',
    'x',
    '40/other,{}',
    '40{"token":1}',
    '41/other',
    '42/other,["publish",{}]',
    `42["${'x'.repeat(10_000)}"]`,
    '\ufffd\ufffd',
  ])('%s harms nobody else', async (frame) => {
    await using client = new RawClient(pod.port);
    await client.open(auth);
    client.send(frame);
    client.sendBinary(Buffer.from([1, 2, 3]));
    client.send('42["publish",{"room":"x","event":"e"}]');
  });

  test.each([
    '40',
    '40[]',
    '40null',
    '40"x"',
    '40{"token":{}}',
    '40{"__proto__":{"token":1}}',
    '42["publish",{}]',
    '41',
    '43',
    '40{"token":',
  ])('%s as the first one is refused', async (frame) => {
    await using client = new RawClient(pod.port);
    await client.next(/^0/);
    client.send(frame);
    await eventually(() => client.isClosed || client.texts.some((text) => text.startsWith('44')));
  });

  test('binary first, half a frame, and a connection reset in the middle of it', async () => {
    for (const bytes of ['\x82\x03abc', '\x81\xfe', '\x81', '\xff\xff\xff\xff', 'GET / HTTP/1.1\r\n\r\n']) {
      await using client = new RawClient(pod.port);
      await client.next(/^0/);
      client.socket.write(Buffer.from(bytes, 'latin1'));
      client.socket.resetAndDestroy();
    }
  });

  test('events of every kind with every wrong value are answered or ignored, with and without an ack', async () => {
    await using client = new RawClient(pod.port);
    await client.open(auth);
    let id = 1;
    for (const event of EVENTS) {
      for (const value of VALUES) {
        client.send(`42["${event}",${value}]`);
        client.send(`42["${event}",${value},${value}]`);
        client.send(`42${id++}["${event}",${value}]`);
      }
      client.send(`42["${event}"]`);
      client.send(`42${id++}["${event}"]`);
    }
    const answers = (): string[] => client.texts.filter((text) => text.startsWith('43'));
    await eventually(() => answers().length >= EVENTS.length * (VALUES.length + 1));
    // one's own presence needs no field
    for (const text of answers().filter((one) => !one.includes('"devices"')))
      expect(text).toMatch(/"ok":false,.*"code":"(bad_request|unauthorized)"/);
    expect(client.isClosed).toBe(false);
    expect(({} as { x?: number }).x).toBeUndefined();
  });
});

describe('a payload', () => {
  test('over 1 MB is told so, one over twice that ends its connection, and one below passes', async () => {
    await using client = new RawClient(pod.port);
    await client.open(auth);
    const event = (bytes: number) => ({ room: 'big', event: 'e', data: 'x'.repeat(bytes) });
    expect(await client.ask(1, 'publish', event(990_000))).toMatchObject({ ok: true });
    expect(await client.ask(2, 'publish', event(1_000_001))).toMatchObject({ ok: false, code: 'payload_too_large' });
    expect(await client.ask(3, 'publish', { ...event(1_000_001), ephemeral: true })).toMatchObject({
      code: 'payload_too_large',
    });
    client.send(`42["publish",${JSON.stringify(event(2_200_000))}]`);
    await client.closed();
  });

  test('nested 100,000 levels deep is refused and holds nobody up', async () => {
    await using client = new RawClient(pod.port);
    await client.open(auth);
    const deep = `${'['.repeat(100_000)}${']'.repeat(100_000)}`;
    const wide = `{"a":${'{"a":'.repeat(100_000)}1${'}'.repeat(100_000)}}`;
    const told = /^43\d\[\{"ok":false,"error":"data: nested more than 1000 levels deep","code":"bad_request"/;
    client.send(`421["publish",{"room":"r","event":"e","data":${deep}}]`);
    client.send(`422["publish",{"room":"r","event":"e","data":${wide}}]`);
    client.send(`423["subscribe",${deep}]`);
    client.send(`424["publish",{"room":${deep},"event":"e"}]`);
    await client.next(/^434\[/);
    expect(client.texts.filter((text) => told.test(text))).toHaveLength(2);
    expect(client.isClosed).toBe(false);
    const answer = await ask(pod, 'POST', '/v1/publish', { body: `{"room":"r","event":"e","data":${deep}}` });
    expect(answer).toMatchObject({ status: 400, body: { code: 'bad_request' } });
  });

  test('that is binary all through, where an object is wanted, costs nothing', async () => {
    await using client = new RawClient(pod.port);
    await client.open(auth);
    client.send('451-1["publish",{"_placeholder":true,"num":0}]');
    const startedAt = performance.now();
    client.sendBinary(Buffer.alloc(2_000_000));
    expect(await client.next(/^431\[/)).toContain('bad_request');
    expect(performance.now() - startedAt).toBeLessThan(3000);
  });

  test('with ten binary parts arrives; stock parsers take no more', async () => {
    await using publisher = await join(pod);
    await using reader = await join(pod, { rooms: ['parts'] });
    const parts = Array.from({ length: 10 }, (_, index) => Buffer.from([index]));
    expect(await publisher.publish({ room: 'parts', event: 'e', data: parts })).toMatchObject({ ok: true });
    await eventually(() => reader.received.length === 1);
    expect(reader.received[0]?.data).toEqual(parts);
    expect(await publisher.publish({ room: 'parts', event: 'e', data: parts, ephemeral: true })).toMatchObject({
      ok: false,
      code: 'bad_request',
    });
  });

  test('of any JSON arrives as it was, prototype keys and all', async () => {
    await using reader = await join(pod, { rooms: ['odd'] });
    const values = [
      null,
      0,
      -0.5,
      1e300,
      true,
      '',
      'x',
      '\u2028',
      '💧',
      [],
      {},
      [[[]]],
      { '': '' },
      { a: { b: [1, null] } },
    ];
    for (const data of values) await publish(pod, 'odd', [data]);
    await using client = new RawClient(pod.port);
    await client.open(auth);
    client.send('42["publish",{"room":"odd","event":"e","data":{"__proto__":{"x":1},"constructor":2}}]');
    client.send('42["publish",{"room":"odd","event":"__proto__"}]');
    client.send('42["publish",{"room":"odd","event":"last"}]');
    await eventually(() => reader.received.at(-1)?.event === 'last');
    expect(dataOf(reader).slice(0, values.length)).toEqual(values);
    expect(JSON.stringify(reader.received[values.length]?.data)).toBe('{"__proto__":{"x":1},"constructor":2}');
    expect(reader.received.at(-2)?.event).toBe('__proto__');
    expect(reader.received.at(-1)?.data).toBeNull();
  });
});

describe('names', () => {
  test('of 200 characters, with separators and unicode, are rooms like any other', async () => {
    const rooms = [
      'x'.repeat(200),
      'a/b',
      'a%2Fb',
      'a:b',
      '*',
      'a*',
      '{a}',
      '日本語',
      '💧',
      ' ',
      '__proto__',
      '../..',
      'a\\b',
    ];
    await using client = await join(pod, { rooms });
    for (const room of rooms) await publish(pod, room, [room]);
    await eventually(() => client.received.length >= rooms.length);
    expect(dataOf(client)).toEqual(rooms);
    expect(client.received.map(({ meta }) => meta.room)).toEqual(rooms);
  });

  test('of 201 or 300 characters, with control characters, or of another type are refused', async () => {
    await using client = await join(pod);
    for (const name of [
      '',
      'x'.repeat(201),
      'x'.repeat(300),
      'a\nb',
      '\u0000',
      '\u0085',
      1,
      null,
      [],
      {},
      ['a'],
      true,
    ]) {
      for (const answer of [
        await client.request('subscribe', { room: name }),
        await client.request('unsubscribe', { room: name }),
        await client.request('publish', { room: name, event: 'e' }),
        await client.request('publish', { room: 'r', event: name }),
        await client.request('publish', { room: 'r', event: 'e', id: name }),
      ])
        expect(answer, JSON.stringify(name)).toMatchObject({ ok: false, code: 'bad_request', retryable: false });
    }
    for (const flag of ['yes', 1, null, {}])
      expect(await client.request('publish', { room: 'r', event: 'e', ephemeral: flag })).toMatchObject({
        code: 'bad_request',
      });
  });

  test("of the relay's own and Socket.IO's events are not published", async () => {
    await using client = await join(pod);
    for (const event of [
      'holdfast:gap',
      'rpc-request',
      'device:throttled',
      'presence',
      'connect',
      'disconnect',
      'error',
      'newListener',
    ]) {
      expect(await client.publish({ room: 'r', event })).toMatchObject({ ok: false, code: 'bad_request' });
      const answer = await ask(pod, 'POST', '/v1/publish', { body: { room: 'r', event } });
      expect(answer).toMatchObject({ status: 400, body: { code: 'bad_request' } });
    }
  });

  test('a socket has at most 1,000 rooms, and keeps the others out politely', async () => {
    await using client = await join(pod);
    const acks = await Promise.all(Array.from({ length: 1005 }, (_, index) => client.subscribe(`room-${index}`)));
    const refused = acks.filter(({ ok }) => !ok);
    // two of them are its own
    expect(refused).toHaveLength(7);
    expect(refused[0]).toMatchObject({ code: 'bad_request' });
    expect(await client.subscribe('room-0')).toMatchObject({ ok: true });
    await client.unsubscribe('room-1');
    expect(await client.subscribe('another')).toMatchObject({ ok: true });
  });
});

test('metadata of the handshake is checked, and its texts are those that clients know', async () => {
  const refusal = async (more: object): Promise<string | undefined> => {
    await using client = new RawClient(pod.port);
    return (await client.open({ ...auth, ...more })).message;
  };
  expect(await refusal({ clientType: 'session-scoped' })).toBe('Session ID required for session-scoped clients');
  expect(await refusal({ clientType: 'machine-scoped' })).toBe('Machine ID required for machine-scoped clients');
  expect(await refusal({ clientType: 'x' })).toMatch(/clientType/);
  expect(await refusal({ token: undefined })).toBe('Missing authentication token');
  expect(await refusal({ token: 'x' })).toBe('Invalid authentication token');
  expect(await refusal({ clientType: 'session-scoped', sessionId: 's', unknown: { a: 1 } })).toBeUndefined();
});

test('secrets of the handshake are in no log line', async () => {
  const secret = await token({ sub: someone('secret'), caps: ALL_CAPS });
  await using client = await connect(pod.url, { token: secret });
  await client.request('auth-refresh', { token: `${secret}x` });
  await using raw = new RawClient(pod.port);
  const { pid: own } = await raw.open({ token: secret });
  const output = pod.logs.join('\n');
  expect(output).not.toContain(secret.slice(0, 60));
  expect(output).not.toContain(own);
});
