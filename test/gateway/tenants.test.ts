import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Client, connect } from '../harness/client.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, type Caps, token } from '../harness/token.js';
import { ask, dataOf, publish, type Stack, someone, startStack } from './fixture.js';
import { RawClient } from './raw-client.js';

let stack: Stack;

beforeAll(async () => {
  // its clients name one device, and some of them come at once
  stack = await startStack(2, { env: { HOLDFAST_SINGLE_SESSION: 'off' } });
});
afterAll(() => stack?.stop());

const of = async (tenant: string, caps?: Caps): Promise<{ token: string }> => ({
  token: await token({ sub: 'ann', tenant, device: 'phone', caps }),
});

describe('two tenants with the same user, device, room and id', () => {
  let a: Client;
  let b: Client;
  const room = someone('room');

  beforeAll(async () => {
    a = await connect(stack.pod(0).url, await of('a', ALL_CAPS));
    b = await connect(stack.pod(0).url, await of('b', ALL_CAPS));
    for (const client of [a, b]) await client.subscribe(room);
  });
  afterAll(async () => {
    await a?.stop();
    await b?.stop();
  });

  /** Has everything arrived that was published before? */
  async function settled(): Promise<void> {
    const marker = someone('marker');
    for (const tenant of ['a', 'b']) await publish(stack.pod(0), room, [marker], tenant);
    await eventually(() => [a, b].every((client) => dataOf(client).includes(marker)));
  }

  test('never meet in their rooms, logged or ephemeral', async () => {
    for (const target of [room, 'user:ann', 'tenant:a', 'tenant:b', 'device:ann/phone', 'a/x', '../b/x']) {
      await a.publish({ room: target, event: 'e', data: 'from a' });
      await a.publish({ room: target, event: 'e', data: 'from a', ephemeral: true });
    }
    await settled();
    expect(dataOf(b)).not.toContain('from a');
    expect(dataOf(a).filter((data) => data === 'from a').length).toBeGreaterThanOrEqual(6);
  });

  test('have ids of their own', async () => {
    const one = await a.publish({ room, event: 'e', id: 'the-id' });
    const other = await b.publish({ room, event: 'e', id: 'the-id' });
    expect(one.position).not.toBe(other.position);
    const viaHttp = await ask(stack.pod(0), 'POST', '/v1/publish', {
      body: { room, event: 'e', id: 'the-id', tenant: 'a' },
    });
    expect(viaHttp.body.duplicate).toBeUndefined();
  });

  test('have histories of their own', async () => {
    const secret = someone('secret');
    await publish(stack.pod(0), secret, ['of a'], 'a');
    const read = async (tenant: string): Promise<unknown[]> =>
      (await ask(stack.pod(0), 'GET', `/v1/history/${secret}?tenant=${tenant}`)).body.events;
    expect(await read('a')).toHaveLength(1);
    expect(await read('b')).toEqual([]);
    expect(await read('default')).toEqual([]);
  });

  test('resume nothing of each other, nor read from each other’s positions', async () => {
    const mine = new RawClient(stack.pod(0).port);
    const { pid } = await mine.open(await of('a', ALL_CAPS));
    await mine.ask(1, 'subscribe', { room });
    await mine.stop();
    const [position] = await publish(stack.pod(0), room, ['missed by a'], 'a');
    await using thief = new RawClient(stack.pod(1).port);
    expect((await thief.open({ ...(await of('b', ALL_CAPS)), pid })).pid).not.toBe(pid);
    const from = position?.replace(/-(\d+)$/, (_, offset) => `-${Number(offset) - 1}`);
    await thief.ask(2, 'subscribe', { room, from });
    await using owner = new RawClient(stack.pod(1).port);
    expect((await owner.open({ ...(await of('a', ALL_CAPS)), pid })).pid).toBe(pid);
    await owner.next(/missed by a/);
    expect(thief.texts.join()).not.toContain('missed by a');
  });

  test('and a token of one refreshes no socket of the other', async () => {
    expect(await a.request('auth-refresh', await of('b'))).toMatchObject({ ok: false, code: 'permission_denied' });
    expect(await a.request('auth-refresh', await of('a', ALL_CAPS))).toMatchObject({ ok: true });
  });
});

test('a user of many characters that need escapes is reached like any other', async () => {
  const sub = `${someone()}-${'日本語'.repeat(40)}`;
  const room = `user:${encodeURIComponent(sub)}`;
  await using client = await connect(stack.pod(0).url, { token: await token({ sub, device: '💧'.repeat(90) }) });
  await publish(stack.pod(1), room, ['hello']);
  await publish(stack.pod(1), `device:${encodeURIComponent(sub)}/${encodeURIComponent('💧'.repeat(90))}`, ['device']);
  await eventually(() => client.received.length === 2);
  expect(dataOf(client)).toEqual(['hello', 'device']);
  expect(await client.subscribe(room)).toMatchObject({ ok: true });
  const { body } = await ask(stack.pod(0), 'GET', `/v1/history/${encodeURIComponent(room)}`);
  expect(body.events).toMatchObject([{ data: 'hello' }]);
});

describe('permissions', () => {
  async function allowed(
    caps: Caps | undefined,
    rooms: readonly string[],
  ): Promise<{ subscribe: string[]; publish: string[] }> {
    await using client = await connect(stack.pod(0).url, {
      token: await token({ sub: 'bob', tenant: 'acme', device: 'd*', caps }),
    });
    const can = async (event: string, payload: object): Promise<boolean> => {
      const ack = await client.request(event, payload);
      if (!ack.ok) expect(ack.code).toBe('permission_denied');
      return ack.ok;
    };
    const result = { subscribe: [] as string[], publish: [] as string[] };
    for (const room of rooms) {
      if (await can('subscribe', { room })) result.subscribe.push(room);
      if (await can('publish', { room, event: 'e' })) result.publish.push(room);
    }
    return result;
  }

  const own = ['user:bob', 'tenant:acme', 'device:bob/d%2A'];
  const others = ['user:ann', 'tenant:other', 'device:bob/dx', 'device:ann/d%2A', 'user:bob2', 'chat', '*', 'user:*'];

  test('by default are exactly the own rooms, and publishing nothing', async () => {
    expect(await allowed(undefined, [...own, ...others])).toEqual({ subscribe: own, publish: [] });
  });

  test('of an empty list are nothing; the own rooms one is in anyway', async () => {
    const result = await allowed({ subscribe: [], publish: [] }, [...own, ...others]);
    expect(result).toEqual({ subscribe: own, publish: [] });
  });

  test('by patterns are what the patterns say', async () => {
    const rooms = ['chat', 'chat:1', 'chat:', 'xchat:1', 'a-b', 'a--b', 'ab'];
    const result = await allowed({ subscribe: ['chat:*'], publish: ['a*b', 'chat'] }, rooms);
    expect(result).toEqual({ subscribe: ['chat:1', 'chat:'], publish: ['chat', 'a-b', 'a--b', 'ab'] });
  });

  test('of more than 100 patterns are a token that is none', async () => {
    const caps = { publish: Array.from({ length: 101 }, (_, index) => `r${index}`) };
    await using client = new RawClient(stack.pod(0).port);
    expect((await client.open({ token: await token({ sub: 'bob', caps }) })).data?.code).toBe('unauthorized');
  });

  test('`auth.device` proves nothing: only the token’s device has its room', async () => {
    const victim = someone('device');
    await using liar = await connect(stack.pod(0).url, {
      token: await token({ sub: 'bob' }),
      auth: { device: victim },
    });
    await using honest = await connect(stack.pod(1).url, { token: await token({ sub: 'bob', device: victim }) });
    await publish(stack.pod(0), `device:bob/${victim}`, ['for the device']);
    await publish(stack.pod(0), 'user:bob', ['for the user']);
    await eventually(() => honest.received.length === 2 && liar.received.length === 1);
    expect(dataOf(liar)).toEqual(['for the user']);
  });
});
