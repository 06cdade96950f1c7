import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
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
let tests = 0;
let keys: Keys;
const open: Process[] = [];
/** What was told, in order: `+laptop`, `-laptop`; `+` alone of sockets without a device. */
let told: string[] = [];

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  admin = new Redis(redis.url, { maxRetriesPerRequest: null });
  admin.on('error', () => {});
  listener = new Redis(redis.url, { maxRetriesPerRequest: null });
  listener.on('error', () => {});
  listener.on('pmessage', (_pattern, channel: string, message: string) => {
    if (!channel.startsWith(keys.prefix)) return;
    const [event, { device, online }] = JSON.parse(message);
    expect(event).toBe('presence');
    told.push(`${online ? '+' : '-'}${device ?? ''}`);
  });
  await listener.psubscribe('*');
});
afterAll(async () => {
  admin?.disconnect();
  listener?.disconnect();
  await redis?.stop();
});
beforeEach(() => {
  keys = new Keys(`t${++tests}:`);
  told = [];
});
afterEach(async () => {
  for (const process of open.splice(0)) await process.stop();
});

/** One process: a connection and who is here. */
class Process implements AsyncDisposable {
  readonly connection: Connection;
  readonly presence: Presence;

  constructor(
    readonly id: string,
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
    open.push(this);
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

async function start(id: string, url?: string): Promise<Process> {
  const process = new Process(id, url);
  expect(await process.connection.whenUp(5000)).toBe(true);
  await process.presence.start();
  return process;
}

const hash = (user = 'ada'): Promise<Record<string, string>> => admin.hgetall(keys.presence(`acme/${user}`));
const holders = async (user?: string): Promise<Record<string, string>> =>
  Object.fromEntries(Object.entries(await hash(user)).map(([field, value]) => [field, value.split('|')[0] as string]));
const held = (id: string): Promise<string[]> => admin.smembers(keys.presenceHeld(id));
const until = (expected: Record<string, string>) => eventually(async () => expect(await holders()).toEqual(expected));
const left = async (): Promise<string[]> => (await admin.keys(`${keys.prefix}*`)).sort();

describe('what is told', () => {
  test('a device is online with its first socket, and offline after its last, on whichever processes they are', async () => {
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
    expect(await left()).toEqual([]);
  });

  test('devices come and go each for itself, and sockets without a device together', async () => {
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

  test('names of any kind are told and found as they are', async () => {
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

  test('who connects, leaves and connects within one turn of the loop is told of once', async () => {
    const a = await start('a');
    a.enter('laptop', 's1')(true);
    a.enter('laptop', 's2');
    await until({ 'laptop|s2': 'a' });
    expect(told).toEqual(['+laptop']);
  });
});

describe('a lost connection', () => {
  test('of a client that is back in a moment is not told', async () => {
    const [a, b] = [await start('a'), await start('b')];
    const leave = a.enter('laptop', 's1');
    await until({ 'laptop|s1': 'a' });
    leave(false);
    b.enter('laptop', 's2');
    await until({ 'laptop|s2': 'b' });
    expect(told).toEqual(['+laptop']);
  });

  test('of one that stays away is told after 2 s', async () => {
    const a = await start('a');
    const leave = a.enter('laptop', 's1');
    await until({ 'laptop|s1': 'a' });
    const before = performance.now();
    leave(false);
    await until({});
    expect(performance.now() - before).toBeGreaterThan(1900);
    await eventually(() => expect(told).toEqual(['+laptop', '-laptop']));
    expect(await left()).toEqual([]);
  });

  test("a recovered socket's old connection ends late, and changes nothing", async () => {
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

  test('ends at once when the process stops, and nothing is left', async () => {
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

describe('a dead process', () => {
  test('takes only its own sockets with it, and its devices that are elsewhere stay online', async () => {
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

  test('that lives after all is there again, and steals nothing from where its clients went on', async () => {
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

  test('with thousands of users is buried completely', async () => {
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
  test('is told of what happened meanwhile, and of nothing that came and went', async () => {
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

  test('loses everything, and has it again', async () => {
    const a = await start('a');
    for (let index = 0; index < 600; index++) a.enter('laptop', `s${index}`, `user-${index}`);
    await eventually(async () => expect(await held('a')).toHaveLength(600));
    await admin.del(...(await left()));
    a.presence.reassert();
    await eventually(async () => expect(await left()).toHaveLength(601));
    expect(await held('a')).toHaveLength(600);
  });

  test('loses one key, and has it again in a while', async () => {
    const a = await start('a');
    a.enter('laptop', 's1');
    await until({ 'laptop|s1': 'a' });
    await admin.del(keys.presence('acme/ada'));
    await until({ 'laptop|s1': 'a' });
    await admin.del(keys.presenceHeld('a'));
    await eventually(async () => expect(await held('a')).toEqual(['acme/ada']));
  });

  test('holds up no look-up for long', async () => {
    await using proxy = await startTcpProxy(redis.port);
    const a = await start('a', `redis://127.0.0.1:${proxy.port}`);
    proxy.blackhole(true);
    const before = performance.now();
    const failure: unknown = await a.presence.of('acme', 'ada').catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(RelayError);
    expect(performance.now() - before).toBeLessThan(2000);
    proxy.blackhole(false);
  });

  test('that is full is asked again, and who goes meanwhile is told', async () => {
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

  test('that refuses what is written of one user holds up nobody else, nor his own connects', async () => {
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
    expect(performance.now() - startedAt).toBeLessThan(1000);
    expect(Object.keys(await hash())).toHaveLength(6);
    await admin.del(keys.presence('acme/bob'));
    await eventually(async () => expect(Object.keys(await hash('bob'))).toHaveLength(6));
  });

  test('that is away at the stop is not waited for', async () => {
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

test('a user has at most 1,000 sockets listed, and one that goes makes room', async () => {
  const [a, b] = [await start('a'), await start('b')];
  const leaves = Array.from({ length: 1010 }, (_, index) => a.enter(`device-${index}`, `s${index}`));
  await eventually(async () => expect(await admin.hlen(keys.presence('acme/ada'))).toBe(1000));
  expect((await a.presence.of('acme', 'ada')).devices).toHaveLength(1000);
  leaves[0]?.(true);
  await eventually(async () => expect(await admin.hlen(keys.presence('acme/ada'))).toBe(999));
  b.enter('laptop', 'other');
  await eventually(async () => expect(await holders()).toMatchObject({ 'laptop|other': 'b' }));
});

test('who asks in the tick in which it connected finds itself', async () => {
  const a = await start('a');
  for (let round = 0; round < 20; round++) {
    a.enter('laptop', `s${round}`, `user-${round}`);
    expect((await a.presence.of('acme', `user-${round}`)).devices).toHaveLength(1);
  }
});

test('whatever happens in whichever order, what is told last is what is true', async () => {
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

test('starts and stops however often it is told to', async () => {
  for (let round = 0; round < 5; round++) {
    const a = await start(`a${round}`);
    await a.presence.start();
    a.enter('laptop', 's1');
    await Promise.all([a.stop(), a.stop()]);
    expect(await left()).toEqual([]);
  }
});
