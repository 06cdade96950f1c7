import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { RelayError } from '../../src/core/errors.js';
import { silentMeter } from '../../src/core/ports.js';
import { Presence } from '../../src/presence/index.js';
import { Connection } from '../../src/redis/connect.js';
import { Keys } from '../../src/redis/keys.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';

let redis: RedisProcess;
let admin: Redis;
let listener: Redis;
let scenes = 0;
/** By key prefix: what was told, in order: `+laptop`, `-laptop`; `+` alone of sockets without a device. */
const toldBy = new Map<string, string[]>();

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  admin = new Redis(redis.url, { maxRetriesPerRequest: null });
  admin.on('error', () => {});
  listener = new Redis(redis.url, { maxRetriesPerRequest: null });
  listener.on('error', () => {});
  listener.on('pmessage', (_pattern, channel: string, message: string) => {
    const [event, { device, online }] = JSON.parse(message);
    expect(event).toBe('presence');
    toldBy.get(channel.slice(0, channel.indexOf(':') + 1))?.push(`${online ? '+' : '-'}${device ?? ''}`);
  });
  await listener.psubscribe('*');
});
afterAll(async () => {
  admin?.disconnect();
  listener?.disconnect();
  await redis?.stop();
});

/** One process: a connection and who is here. */
class Process implements AsyncDisposable {
  readonly connection: Connection;
  readonly presence: Presence;

  constructor(
    readonly id: string,
    keys: Keys,
    url = redis.url,
  ) {
    this.connection = new Connection({ url, name: id, silenceMs: 2500 });
    this.presence = new Presence({
      connection: this.connection,
      keys,
      processId: id,
      methodsOf: async (tenant, user) => [`method-of-${tenant}-${user}`],
      meter: silentMeter,
    });
  }

  enter(device: string | undefined, socketId: string, user = 'ada') {
    const visit = this.presence.enter({ tenant: 'acme', user, device }, socketId);
    return (isFinal: boolean) => visit.leave(isFinal);
  }

  async stop(): Promise<void> {
    await this.presence.stop();
    this.connection.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

/** Keys of its own for each test, so that tests wait side by side. */
class Scene {
  readonly keys = new Keys(`t${++scenes}:`);
  readonly told: string[] = [];
  readonly open: Process[] = [];

  constructor() {
    toldBy.set(this.keys.prefix, this.told);
  }

  readonly start = async (id: string, url?: string): Promise<Process> => {
    const process = new Process(id, this.keys, url);
    this.open.push(process);
    expect(await process.connection.whenUp(15_000)).toBe(true);
    await process.presence.start();
    return process;
  };

  readonly hash = (user = 'ada'): Promise<Record<string, string>> => admin.hgetall(this.keys.presence(`acme/${user}`));

  readonly holders = async (user?: string): Promise<Record<string, string>> =>
    Object.fromEntries(
      Object.entries(await this.hash(user)).map(([field, value]) => [field, value.split('|')[0] as string]),
    );

  readonly held = (id: string): Promise<string[]> => admin.smembers(this.keys.presenceHeld(id));

  readonly until = (expected: Record<string, string>): Promise<void> =>
    eventually(async () => expect(await this.holders()).toEqual(expected));

  readonly left = async (): Promise<string[]> => (await admin.keys(`${this.keys.prefix}*`)).sort();
}

const it = test.extend<{ scene: Scene }>({
  scene: async ({ task: _ }, use) => {
    const scene = new Scene();
    await use(scene);
    for (const process of scene.open) await process.stop();
  },
});

describe('what is told', () => {
  it('a device is online with its first socket, and offline after its last, on whichever processes they are', async ({
    scene,
  }) => {
    const { told, start, until, left } = scene;
    const [a, b] = [await start('a'), await start('b')];
    const leaveFirst = a.enter('laptop', 's1');
    await until({ 'laptop|s1': 'a' });
    const leaveSecond = b.enter('laptop', 's2');
    await until({ 'laptop|s1': 'a', 'laptop|s2': 'b' });
    leaveFirst(true);
    await until({ 'laptop|s2': 'b' });
    leaveSecond(true);
    await until({});
    await eventually(() => expect(told).toEqual(['+laptop', '-laptop']));
    await eventually(async () => expect(await left()).toEqual([]));
  });

  it('devices come and go each for itself, and sockets without a device together', async ({ scene }) => {
    const { told, start } = scene;
    const a = await start('a');
    a.enter('laptop', 's1');
    const leavePhone = a.enter('phone', 's2');
    const leaveOne = a.enter(undefined, 's3');
    const leaveOther = a.enter(undefined, 's4');
    await eventually(() => expect([...told].sort()).toEqual(['+', '+laptop', '+phone']));
    leavePhone(true);
    leaveOne(true);
    await eventually(() => expect(told).toHaveLength(4));
    expect(told.at(-1)).toBe('-phone');
    leaveOther(true);
    await eventually(() => expect(told.at(-1)).toBe('-'));
    expect((await a.presence.of('acme', 'ada')).devices).toEqual([
      { device: 'laptop', since: expect.any(Number), sockets: 1 },
    ]);
  });

  it('names of any kind are told and found as they are', async ({ scene }) => {
    const { keys, told, start } = scene;
    const a = await start('a');
    const devices = ['sid:s1', 'a|b', '%41', '"', "\\'", '😀', 'a/b', '*', 'ü'.repeat(200), '__proto__'];
    const user = 'x/"ü|{}';
    const scope = `acme/${encodeURIComponent(user)}`;
    for (const [index, device] of devices.entries()) a.enter(device, `s${index}`, user);
    await eventually(() => expect([...told].sort()).toEqual(devices.map((device) => `+${device}`).sort()));
    const found = await a.presence.of('acme', user);
    expect(found.devices.map(({ device }) => device).sort()).toEqual([...devices].sort());
    expect(found.methods).toEqual([`method-of-acme-${user}`]);
    await a.presence.bury('a');
    expect(await admin.exists(keys.presence(scope))).toBe(0);
    await eventually(() => expect(told).toHaveLength(2 * devices.length));
  });

  it('who connects, leaves and connects within one turn of the loop is told of once', async ({ scene }) => {
    const { told, start, until } = scene;
    const a = await start('a');
    a.enter('laptop', 's1')(true);
    a.enter('laptop', 's2');
    await until({ 'laptop|s2': 'a' });
    expect(told).toEqual(['+laptop']);
  });
});

// these only wait
describe.concurrent('a lost connection', () => {
  it('of a client that is back in a moment is not told', async ({ scene }) => {
    const { told, start, until } = scene;
    const [a, b] = [await start('a'), await start('b')];
    const leave = a.enter('laptop', 's1');
    await until({ 'laptop|s1': 'a' });
    leave(false);
    b.enter('laptop', 's2');
    await until({ 'laptop|s2': 'b' });
    expect(told).toEqual(['+laptop']);
  });

  it('of one that stays away is told after 2 s', async ({ scene }) => {
    const { told, start, until, left } = scene;
    const a = await start('a');
    const leave = a.enter('laptop', 's1');
    await until({ 'laptop|s1': 'a' });
    const before = performance.now();
    leave(false);
    await until({});
    expect(performance.now() - before).toBeGreaterThan(1900);
    await eventually(() => expect(told).toEqual(['+laptop', '-laptop']));
    await eventually(async () => expect(await left()).toEqual([]));
  });

  it("a recovered socket's old connection ends late, and changes nothing", async ({ scene }) => {
    const { told, start, holders, held, until } = scene;
    const [a, b] = [await start('a'), await start('b')];
    const leaveOld = a.enter('laptop', 's1');
    await until({ 'laptop|s1': 'a' });
    const [since] = (await a.presence.of('acme', 'ada')).devices;
    const leaveNew = b.enter('laptop', 's1');
    await until({ 'laptop|s1': 'b' });
    leaveOld(true);
    const leaveBack = b.enter('laptop', 's1');
    leaveNew(true);
    await eventually(async () => expect(await held('a')).toEqual([]));
    expect(await holders()).toEqual({ 'laptop|s1': 'b' });
    expect((await b.presence.of('acme', 'ada')).devices).toEqual([since]);
    leaveBack(true);
    await until({});
    expect(told).toEqual(['+laptop', '-laptop']);
  });

  it('ends at once when the process stops, and nothing is left', async ({ scene }) => {
    const { told, start, left } = scene;
    const a = await start('a');
    a.enter('phone', 's1');
    const leave = a.enter('laptop', 's2');
    await eventually(() => expect(told).toHaveLength(2));
    leave(false);
    await a.presence.stop();
    expect(a.presence.hasLeft).toBe(true);
    expect(await left()).toEqual([]);
    await eventually(() => expect(told.slice(2).sort()).toEqual(['-laptop', '-phone']));
  });
});

describe.concurrent('a key that is lost', () => {
  it('is there again in a while', async ({ scene }) => {
    const { keys, start, held, until } = scene;
    const a = await start('a');
    a.enter('laptop', 's1');
    await until({ 'laptop|s1': 'a' });
    await admin.del(keys.presence('acme/ada'));
    await until({ 'laptop|s1': 'a' });
    await admin.del(keys.presenceHeld('a'));
    await eventually(async () => expect(await held('a')).toEqual(['acme/ada']));
  });
});

describe('a dead process', () => {
  it('takes only its own sockets with it, and its devices that are elsewhere stay online', async ({ scene }) => {
    const { told, start, hash, holders, held } = scene;
    const [a, b] = [await start('a'), await start('b')];
    a.enter('laptop', 's1');
    a.enter('phone', 's2');
    a.enter('tablet', 's3');
    await eventually(async () => expect(Object.keys(await hash())).toHaveLength(3));
    b.enter('phone', 's4');
    b.enter('tablet', 's3');
    await eventually(async () => expect(await holders()).toMatchObject({ 'phone|s4': 'b', 'tablet|s3': 'b' }));
    await b.presence.bury('a');
    await b.presence.bury('a');
    expect(await holders()).toEqual({ 'phone|s4': 'b', 'tablet|s3': 'b' });
    expect(await held('a')).toEqual([]);
    await eventually(() => expect(told.slice(3)).toEqual(['-laptop']));
  });

  it('that lives after all is there again, and steals nothing from where its clients went on', async ({ scene }) => {
    const { told, start, held, until } = scene;
    const [a, b] = [await start('a'), await start('b')];
    a.enter('laptop', 's1');
    a.enter('phone', 's2');
    await eventually(() => expect(told).toHaveLength(2));
    await b.presence.bury('a');
    b.enter('laptop', 's1');
    await until({ 'laptop|s1': 'b' });
    a.presence.returnToLife();
    await until({ 'laptop|s1': 'b', 'phone|s2': 'a' });
    expect(await held('a')).toEqual(['acme/ada']);
    await eventually(() => expect(told.slice(2).sort()).toEqual(['+laptop', '+phone', '-laptop', '-phone']));
  });

  it('with thousands of users is buried completely', async ({ scene }) => {
    const { told, start, left } = scene;
    await using proxy = await startTcpProxy(redis.port);
    const [a, b] = [await start('a', `redis://127.0.0.1:${proxy.port}`), await start('b')];
    for (let index = 0; index < 2500; index++) a.enter('laptop', `s${index}`, `user-${index}`);
    await eventually(() => expect(told).toHaveLength(2500), { withinMs: 15_000 });
    await proxy.refuse(true);
    proxy.rst();
    await eventually(() => !a.connection.isUp);
    await b.presence.bury('a');
    expect(await left()).toEqual([]);
    await eventually(() => expect(told).toHaveLength(5000));
  });
});

describe('a Redis that fails', () => {
  it('is told of what happened meanwhile, and of nothing that came and went', async ({ scene }) => {
    const { told, start, until } = scene;
    await using proxy = await startTcpProxy(redis.port);
    const a = await start('a', `redis://127.0.0.1:${proxy.port}`);
    const leave = a.enter('laptop', 's1');
    await until({ 'laptop|s1': 'a' });
    await proxy.refuse(true);
    proxy.rst();
    await eventually(() => !a.connection.isUp);
    leave(true);
    a.enter('phone', 's2');
    a.enter('tablet', 's3')(true);
    await expect(a.presence.of('acme', 'ada')).rejects.toMatchObject({ code: 'unavailable' });
    await proxy.refuse(false);
    await until({ 'phone|s2': 'a' });
    await eventually(() => expect([...told].sort()).toEqual(['+laptop', '+phone', '-laptop']));
  });

  it('loses everything, and has it again', async ({ scene }) => {
    const { start, held, left } = scene;
    const a = await start('a');
    for (let index = 0; index < 600; index++) a.enter('laptop', `s${index}`, `user-${index}`);
    await eventually(async () => expect(await held('a')).toHaveLength(600));
    await admin.del(...(await left()));
    a.presence.reassert();
    await eventually(async () => expect(await left()).toHaveLength(601));
    expect(await held('a')).toHaveLength(600);
  });

  it('holds up no look-up for long', async ({ scene }) => {
    const { start } = scene;
    await using proxy = await startTcpProxy(redis.port);
    const a = await start('a', `redis://127.0.0.1:${proxy.port}`);
    proxy.blackhole(true);
    const before = performance.now();
    const failure: unknown = await a.presence.of('acme', 'ada').catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(RelayError);
    expect(performance.now() - before).toBeLessThan(2000);
    proxy.blackhole(false);
  });

  it('that is full is asked again, and who goes meanwhile is told', async ({ scene }) => {
    const { told, start, holders, until } = scene;
    const a = await start('a');
    const leave = a.enter('laptop', 's1');
    await until({ 'laptop|s1': 'a' });
    await admin.config('SET', 'maxmemory', '1');
    try {
      a.enter('phone', 's2', 'bob');
      leave(true);
      await eventually(() => expect(told).toEqual(['+laptop', '-laptop']));
    } finally {
      await admin.config('SET', 'maxmemory', '0');
    }
    await eventually(async () => expect(await holders('bob')).toEqual({ 'phone|s2': 'a' }));
  });

  it('that refuses what is written of one user holds up nobody else, nor his own connects', async ({ scene }) => {
    const { keys, start, hash } = scene;
    const a = await start('a');
    await admin.set(keys.presence('acme/bob'), 'no hash');
    const connect = (user: string, socketId: string) =>
      a.presence.enter({ tenant: 'acme', user, device: 'phone' }, socketId).whenTried;
    const startedAt = performance.now();
    for (let round = 0; round < 6; round++) {
      await connect('bob', `b${round}`);
      await connect('ada', `a${round}`);
      await a.presence.of('acme', 'ada');
    }
    // one wait of 500 ms for each round, if they waited
    expect(performance.now() - startedAt).toBeLessThan(6 * 500);
    expect(Object.keys(await hash())).toHaveLength(6);
    await admin.del(keys.presence('acme/bob'));
    await eventually(async () => expect(Object.keys(await hash('bob'))).toHaveLength(6));
  });

  it('that is away at the stop is not waited for', async ({ scene }) => {
    const { start, until, left } = scene;
    await using proxy = await startTcpProxy(redis.port);
    const a = await start('a', `redis://127.0.0.1:${proxy.port}`);
    a.enter('laptop', 's1');
    await until({ 'laptop|s1': 'a' });
    proxy.blackhole(true);
    const before = performance.now();
    await a.presence.stop();
    expect(performance.now() - before).toBeLessThan(2500);
    expect(a.presence.hasLeft).toBe(false);
    proxy.blackhole(false);
    await admin.del(...(await left()));
  });
});

it('a user has at most 1,000 sockets listed, and one that goes makes room', async ({ scene }) => {
  const { keys, start, holders } = scene;
  const [a, b] = [await start('a'), await start('b')];
  const leaves = Array.from({ length: 1010 }, (_, index) => a.enter(`device-${index}`, `s${index}`));
  await eventually(async () => expect(await admin.hlen(keys.presence('acme/ada'))).toBe(1000));
  expect((await a.presence.of('acme', 'ada')).devices).toHaveLength(1000);
  leaves[0]?.(true);
  await eventually(async () => expect(await admin.hlen(keys.presence('acme/ada'))).toBe(999));
  b.enter('laptop', 'other');
  await eventually(async () => expect(await holders()).toMatchObject({ 'laptop|other': 'b' }));
});

it('who asks in the tick in which it connected finds itself', async ({ scene }) => {
  const { start } = scene;
  const a = await start('a');
  for (let round = 0; round < 20; round++) {
    a.enter('laptop', `s${round}`, `user-${round}`);
    expect((await a.presence.of('acme', `user-${round}`)).devices).toHaveLength(1);
  }
});

it('whatever happens in whichever order, what is told last is what is true', async ({ scene }) => {
  const { told, start, hash } = scene;
  const processes = await Promise.all(['a', 'b', 'c'].map((id) => start(id)));
  const devices = ['laptop', 'phone'];
  const leaves: (() => void)[] = [];
  for (let step = 0; step < 600; step++) {
    const process = processes[Math.floor(Math.random() * 3)] as Process;
    const device = devices[step % 2] as string;
    if (Math.random() < 0.5 || leaves.length === 0) {
      const leave = process.enter(device, `s${Math.floor(Math.random() * 6)}-${device}`);
      leaves.push(() => leave(true));
    } else leaves.splice(Math.floor(Math.random() * leaves.length), 1)[0]?.();
    if (step % 40 === 0) await (processes[1] as Process).presence.bury('a');
    if (step % 60 === 0) processes[0]?.presence.reassert();
    if (step % 7 === 0) await admin.ping();
  }
  // one after another, so that nothing is on its way
  for (const { presence } of processes) await presence.of('acme', 'ada');
  let state = '';
  await eventually(async () => {
    const seen = JSON.stringify(await hash());
    const isStill = seen === state;
    state = seen;
    return isStill;
  });
  for (const device of devices) {
    const isOnline = Object.keys(await hash()).some((field) => field.startsWith(`${device}|`));
    await eventually(() =>
      expect(told.filter((text) => text.slice(1) === device).at(-1)?.[0]).toBe(isOnline ? '+' : '-'),
    );
  }
});

it('starts and stops however often it is told to', async ({ scene }) => {
  const { start, left } = scene;
  for (let round = 0; round < 5; round++) {
    const a = await start(`a${round}`);
    await a.presence.start();
    a.enter('laptop', 's1');
    await Promise.all([a.stop(), a.stop()]);
    expect(await left()).toEqual([]);
  }
});
