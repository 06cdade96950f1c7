import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Client, connect } from '../harness/client.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { ALL_CAPS, type TokenOptions, token } from '../harness/token.js';
import { ask, type Stack, someone, startStack } from './fixture.js';
import { RawClient } from './raw-client.js';

interface Told {
  readonly user: string;
  readonly device?: string;
  readonly online: boolean;
  readonly at: number;
}

interface Found {
  readonly ok: boolean;
  readonly code?: string;
  readonly devices: readonly { readonly device?: string; readonly since: number; readonly sockets: number }[];
  readonly methods: readonly string[];
}

let stack: Stack;
/** Its pods are killed, paused and drained, and its Redis is wiped and killed. Each test leaves it whole. */
let frail: Stack;

beforeAll(async () => {
  // a device may have several sockets here
  stack = await startStack(2, { env: { HOLDFAST_SINGLE_SESSION: 'off' } });
  frail = await startStack(2, { env: { HOLDFAST_DRAIN_MS: '1500ms', HOLDFAST_SINGLE_SESSION: 'off' } });
});
afterAll(() => Promise.all([stack?.stop(), frail?.stop()]));

const enter = async (pod: { readonly url: string }, options: TokenOptions): Promise<Client> =>
  connect(pod.url, { token: await token(options) });

/** What a client heard of other devices. It may or may not hear of its own coming. */
const toldTo = (client: Client): Told[] =>
  client.control
    .filter(({ event }) => event === 'presence')
    .map(({ args }) => args[0] as Told)
    .filter(({ device }) => device !== 'watcher');
const changes = (client: Client): string[] =>
  toldTo(client).map(({ device, online }) => `${online ? '+' : '-'}${device ?? ''}`);
const hears = (client: Client, expected: readonly string[], withinMs = 5000): Promise<void> =>
  eventually(() => expect(changes(client)).toEqual(expected), { withinMs });

const find = (client: Client, user?: string): Promise<Found> =>
  client.request<Found>('presence-get', { ...(user !== undefined && { user }) });

const watch = (pod: Pod, sub: string): Promise<Client> => enter(pod, { sub, device: 'watcher' });

function moveTo(client: Client, url: string): void {
  (client.socket.io as unknown as { uri: string }).uri = url;
}

const keys = (own: Stack): Promise<string[]> => own.client.keys('hf:presence:*');

// one after another on each stack, and the two stacks beside each other
describe.concurrent('pods that stay', () => {
  describe.sequential('what a user hears of his devices', () => {
    test('each comes with its first connection and goes with its last, on any pod, and the answer names who is there', async () => {
      const sub = someone('ada');
      await using watcher = await watch(stack.pod(0), sub);
      const laptop = await enter(stack.pod(1), { sub, device: 'laptop' });
      const second = await enter(stack.pod(0), { sub, device: 'laptop' });
      const phone = await enter(stack.pod(1), { sub, device: 'phone' });
      const plain = await enter(stack.pod(1), { sub });
      await hears(watcher, ['+laptop', '+phone', '+']);
      const [first] = toldTo(watcher);
      expect(first).toEqual({ user: sub, device: 'laptop', online: true, at: expect.any(Number) });
      expect(Math.abs((first?.at ?? 0) - Date.now())).toBeLessThan(10_000);
      const found = await find(watcher);
      expect(found).toMatchObject({ ok: true, methods: [] });
      expect(found.devices.map(({ device, sockets }) => [device, sockets])).toEqual([
        ['watcher', 1],
        ['laptop', 2],
        ['phone', 1],
        [undefined, 1],
      ]);
      await laptop.stop();
      await phone.stop();
      await hears(watcher, ['+laptop', '+phone', '+', '-phone']);
      await second.stop();
      await plain.stop();
      await eventually(() => expect(changes(watcher).slice(4).sort()).toEqual(['-', '-laptop']));
    });

    test('a client that asks at once finds itself, here and from elsewhere', async () => {
      await using friend = await connect(stack.pod(1).url, { token: await token({ sub: someone(), caps: ALL_CAPS }) });
      for (let round = 0; round < 20; round++) {
        const sub = someone();
        await using client = await enter(stack.pod(0), { sub, device: 'd' });
        const [own, others] = await Promise.all([find(client), find(friend, sub)]);
        expect(own.devices).toEqual([{ device: 'd', since: expect.any(Number), sockets: 1 }]);
        expect(others.devices).toEqual(own.devices);
      }
    });

    test('a cut that a client recovers from, here or on another pod, is not heard', async () => {
      const sub = someone();
      await using watcher = await watch(stack.pod(0), sub);
      await using client = await enter(stack.pod(0), { sub, device: 'd' });
      const [, { since = 0 } = {}] = (await find(watcher)).devices;
      for (const pod of [stack.pod(0), stack.pod(1), stack.pod(0)]) {
        const { length } = client.connects;
        moveTo(client, pod.url);
        client.cut();
        await eventually(() => client.connects.length > length && client.socket.connected);
        expect(client.connects.at(-1)?.recovered).toBe(true);
      }
      expect((await find(watcher)).devices[1]).toEqual({ device: 'd', since, sockets: 1 });
      client.socket.io.reconnection(false);
      client.cut();
      await hears(watcher, ['+d', '-d']);
    });

    test("a half-open connection's late death does not take its device offline", async () => {
      const sub = someone();
      await using proxy = await startTcpProxy(stack.pod(0).port);
      await using watcher = await watch(stack.pod(1), sub);
      const stuck = await enter({ url: `http://127.0.0.1:${proxy.port}` }, { sub, device: 'd' });
      await hears(watcher, ['+d']);
      proxy.blackhole(true);
      await using back = await enter(stack.pod(1), { sub, device: 'd' });
      await eventually(async () => expect((await find(back)).devices[1]).toMatchObject({ device: 'd', sockets: 2 }));
      proxy.blackhole(false);
      proxy.rst();
      await stuck.stop();
      await eventually(async () => expect((await find(back)).devices[1]).toMatchObject({ device: 'd', sockets: 1 }));
      expect(changes(watcher)).toEqual(['+d']);
    });
  });

  test.sequential('300 sockets that came and went leave nothing in Redis', async () => {
    const sum = async (change: string): Promise<number> => {
      const all = await Promise.all(stack.pods.map((pod) => pod.metrics()));
      return all.reduce(
        (total, one) => total + (one.get(`holdfast_presence_events_total{change="${change}"}`) ?? 0),
        0,
      );
    };
    await eventually(async () => expect(await keys(stack)).toEqual([]));
    const before = await sum('online');
    const tokens = await Promise.all(
      Array.from({ length: 100 }, (_, index) =>
        token({ sub: `user-${index % 50}`, ...(index % 3 > 0 && { device: `d${index % 7}` }) }),
      ),
    );
    const sockets = Array.from({ length: 300 }, (_, index) => new RawClient(stack.pod(index % 2).port));
    await Promise.all(sockets.map((socket, index) => socket.open({ token: tokens[index % 100] })));
    await eventually(async () => expect(await keys(stack)).toHaveLength(52));
    // by a word, or without one
    for (const [index, socket] of sockets.entries()) if (index % 3 > 0) socket.send('41');
    await Promise.all(sockets.map((socket, index) => index % 3 === 0 && socket.stop()));
    await eventually(async () => expect(await keys(stack)).toEqual([]));
    await Promise.all(sockets.map((socket) => socket.stop()));
    // a pod counts when Redis has answered, which is after the keys have gone
    await eventually(async () => {
      const online = await sum('online');
      expect(online).toBeGreaterThan(before + 50);
      expect(await sum('offline')).toBe(online);
    });
  });

  describe.sequential('who may ask', () => {
    test('everybody for himself, and for others who may call all of their methods', async () => {
      const [ada, bob] = ['a/da *', someone('bob')];
      await using one = await enter(stack.pod(0), { sub: ada, device: 'd' });
      const asks = async (caps: TokenOptions['caps'], user?: string): Promise<Found> => {
        await using client = await enter(stack.pod(1), { sub: bob, caps });
        return await find(client, user);
      };
      expect(await asks({ call: [] })).toMatchObject({ ok: true, devices: [{ sockets: 1 }] });
      expect(await asks({ call: [] }, bob)).toMatchObject({ ok: true });
      for (const call of [['*'], ['a%2Fda%20%2A/*'], ['a%2Fda*']])
        expect(await asks({ call }, ada)).toMatchObject({ ok: true, devices: [{ device: 'd' }] });
      const denied = { ok: false, code: 'permission_denied', retryable: false };
      for (const call of [[], ['a%2Fda%20%2A/ping'], ['a/da */*'], ['other/*'], [`${bob}/*`]])
        expect(await asks({ call }, ada)).toMatchObject(denied);
      expect(await asks(undefined, ada)).toMatchObject(denied);
      expect((await find(one)).devices).toHaveLength(1);
    });

    test('nobody for another tenant', async () => {
      const sub = someone();
      await using one = await enter(stack.pod(0), { sub, tenant: 'acme', device: 'd' });
      await using other = await enter(stack.pod(0), { sub, tenant: 'other', caps: ALL_CAPS });
      expect((await find(one)).devices).toHaveLength(1);
      expect((await find(other, sub)).devices).toEqual([{ since: expect.any(Number), sockets: 1 }]);
      expect((await ask(stack.pod(1), 'GET', `/v1/presence/${sub}?tenant=acme`)).body).toEqual({
        devices: [{ device: 'd', since: expect.any(Number), sockets: 1 }],
        methods: [],
      });
      expect((await ask(stack.pod(1), 'GET', `/v1/presence/${sub}`)).body).toEqual({ devices: [], methods: [] });
    });

    test('with names, and what is none is refused', async () => {
      await using client = await enter(stack.pod(0), { sub: someone(), caps: ALL_CAPS });
      for (const user of [null, 1, '', {}, ['x'], 'a\u0000', 'x'.repeat(201)])
        expect(await client.request('presence-get', { user })).toMatchObject({ ok: false, code: 'bad_request' });
      for (const payload of [null, 'x', [], 1])
        expect(await client.request('presence-get', payload)).toMatchObject({ ok: false, code: 'bad_request' });
      expect(await client.request('presence-get', { user: '😀'.repeat(100) })).toMatchObject({ ok: true, devices: [] });
      client.socket.emit('presence-get', {});
      client.socket.emit('presence-get');
      expect(await ask(stack.pod(0), 'GET', `/v1/presence/${'x'.repeat(201)}`)).toMatchObject({ status: 400 });
      expect(await ask(stack.pod(0), 'GET', '/v1/presence/x?tenant=')).toMatchObject({ status: 400 });
      expect(await ask(stack.pod(0), 'GET', '/v1/presence/x', { key: '' })).toMatchObject({ status: 401 });
      expect(client.disconnects).toEqual([]);
    });

    test('and methods are named with the devices', async () => {
      const sub = someone();
      await using client = await enter(stack.pod(0), { sub, device: 'd' });
      expect(await client.request('rpc-register', { method: 'ping' })).toMatchObject({ ok: true });
      expect(await find(client)).toMatchObject({ ok: true, devices: [{ device: 'd' }], methods: ['ping'] });
      expect((await ask(stack.pod(1), 'GET', `/v1/presence/${sub}`)).body).toMatchObject({ methods: ['ping'] });
    });
  });
});

describe.concurrent('pods and a Redis that come and go', () => {
  test.sequential('a drain that sends its clients elsewhere takes nobody offline', async () => {
    const own = frail;
    const sub = someone();
    await using watcher = await watch(own.pod(1), sub);
    await using client = await enter(own.pod(0), { sub, device: 'd' });
    await hears(watcher, ['+d']);
    const exit = own.pod(0).sigterm();
    await eventually(() => client.disconnects.length > 0, { withinMs: 10_000 });
    moveTo(client, own.pod(1).url);
    expect(await exit).toMatchObject({ code: 0 });
    await eventually(() => client.socket.connected && client.connects.length === 2);
    const { devices } = await find(watcher);
    expect(devices.map(({ device, sockets }) => [device, sockets])).toEqual([
      ['watcher', 1],
      ['d', 1],
    ]);
    expect(changes(watcher)).toEqual(['+d']);
    await own.pod(0).start();
  });

  describe.sequential('a pod that dies', () => {
    test('takes who is gone with it offline within 5 s, and nobody who is back elsewhere', async () => {
      const [dying, other] = [frail.pod(0), frail.pod(1)];
      const sub = someone();
      await using watcher = await watch(other, sub);
      const gone = await enter(dying, { sub, device: 'gone' });
      await using back = await enter(dying, { sub, device: 'back' });
      await using plain = await enter(dying, { sub });
      await hears(watcher, ['+gone', '+back', '+']);
      gone.socket.io.reconnection(false);
      for (const client of [back, plain]) moveTo(client, other.url);
      const killedAt = performance.now();
      await dying.sigkill();
      await hears(watcher, ['+gone', '+back', '+', '-gone']);
      expect(performance.now() - killedAt).toBeLessThan(5000);
      await eventually(async () =>
        expect((await find(watcher)).devices.map(({ device, sockets }) => [device, sockets])).toEqual([
          ['watcher', 1],
          ['back', 1],
          [undefined, 1],
        ]),
      );
      await gone.stop();
      expect(changes(watcher)).toEqual(['+gone', '+back', '+', '-gone']);
      await dying.start();
    });

    test('only for a while has its clients online again, and steals none', async () => {
      const [paused, other] = [frail.pod(0), frail.pod(1)];
      const sub = someone();
      await using watcher = await watch(other, sub);
      await using client = await enter(paused, { sub, device: 'd' });
      await hears(watcher, ['+d']);
      paused.pause();
      await hears(watcher, ['+d', '-d'], 10_000);
      paused.resume();
      await hears(watcher, ['+d', '-d', '+d'], 2000);
      expect(client.disconnects).toEqual([]);
      await eventually(async () => expect((await paused.metrics()).get('holdfast_presence_reasserted_total')).toBe(1));
    });
  });

  describe.sequential('a Redis that fails', () => {
    test('forgets everybody, and knows them again', async () => {
      const sub = someone();
      await using client = await enter(frail.pod(0), { sub, device: 'd' });
      expect((await find(client)).devices).toHaveLength(1);
      await frail.client.flushall();
      await eventually(async () => expect((await find(client)).devices).toMatchObject([{ device: 'd', sockets: 1 }]));
      expect(await keys(frail)).toHaveLength(2);
    });

    test('is gone: clients connect and close all the same, and who is there then is known when it is back', async () => {
      const pod = frail.pod(0);
      const sub = someone();
      const before = await enter(pod, { sub, device: 'before' });
      expect((await find(before)).devices).toHaveLength(1);
      await frail.redis.kill();
      await eventually(() => pod.logs.some((line) => line.includes('redis_down')));
      const startedAt = performance.now();
      await using during = await enter(pod, { sub, device: 'during' });
      await (await enter(pod, { sub, device: 'came and went' })).stop();
      await before.stop();
      expect(performance.now() - startedAt).toBeLessThan(3000);
      expect(await find(during)).toMatchObject({ ok: false, code: 'unavailable', retryable: true });
      expect(await ask(pod, 'GET', `/v1/presence/${sub}`)).toMatchObject({
        status: 503,
        body: { code: 'unavailable' },
      });
      await frail.redis.start();
      await eventually(async () => expect((await find(during)).devices).toMatchObject([{ device: 'during' }]), {
        withinMs: 10_000,
      });
      expect(pod.logs.filter((line) => /_failed|"level":(50|60)/.test(line))).toEqual([]);
    });
  });
});
