import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { sleep } from '../../src/core/sleep.js';
import { partitionOf } from '../../src/log/partition-of.js';
import { Keys } from '../../src/redis/keys.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { Deploy, faultsOf, type MixedServer } from './bridge-rig.js';
import type { TestClient } from './rig.js';

let redis: RedisProcess;
let direct: Redis;
beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  direct = new Redis(redis.url);
});
afterAll(async () => {
  direct?.disconnect();
  await redis?.stop();
});

const FIRST = { withinMs: 15_000, what: 'the first events' } as const;
const LEASE_ENDS = { withinMs: 8000, what: 'another server to carry' } as const;

/** A client on each of them, in the room of the traffic. */
const clientsOf = (servers: readonly MixedServer[]): Promise<TestClient[]> =>
  Promise.all(servers.map((server) => server.client(['t'])));

/** Each emits `count` events under its name. */
const traffic = (servers: ReadonlyMap<string, MixedServer>, count: number, everyMs: number): Promise<unknown[]> =>
  Promise.all([...servers].map(([name, server]) => server.does('traffic', { name, count, everyMs, rooms: ['t'] })));

async function allCame(clients: readonly TestClient[], names: readonly string[], count: number): Promise<void> {
  const isOurs = (value: unknown): boolean => names.includes(String(value).split('-')[0] as string);
  for (const client of clients) {
    const came = (): unknown[] => client.values().filter(isOurs);
    await eventually(() => came().length >= count * names.length, { withinMs: 10_000, what: 'all events' }).catch(
      () => {},
    );
    expect(faultsOf(came(), names, count)).toEqual([]);
  }
}

/** How often it has taken the lease. */
const terms = (server: MixedServer): number => server.lines.filter((line) => line === 'bridge_leads').length;

interface Scene {
  own: RedisProcess;
  ofOwn: Redis;
  deploy: Deploy;
  oldA: MixedServer;
  oldB: MixedServer;
  /** Carries at first. */
  first: MixedServer;
  /** With one new server: that one again. */
  second: MixedServer;
}

/** Two old and some new servers on a Redis of their own: for a group of tests that follow one another. */
function useScene(newServers: 1 | 2): Scene {
  const scene = {} as Scene;
  beforeAll(async () => {
    const own = await startRedis({ aof: 'off' });
    const deploy = new Deploy(own.url);
    Object.assign(scene, { own, ofOwn: new Redis(own.url), deploy });
    const kinds = ['old', 'old', ...Array<'new'>(newServers).fill('new')] as const;
    const [oldA, oldB, c, d = c] = (await Promise.all(kinds.map((kind) => deploy.add(kind)))) as MixedServer[];
    if (!oldA || !oldB || !c || !d) throw new Error('too few servers');
    await deploy.gathered();
    await eventually(() => terms(c) + terms(d) > 0, LEASE_ENDS);
    Object.assign(scene, { oldA, oldB, first: terms(c) > 0 ? c : d, second: terms(c) > 0 ? d : c });
  });
  afterAll(async () => {
    scene.ofOwn?.disconnect();
    await scene.deploy?.[Symbol.asyncDispose]();
    await scene.own?.stop();
  });
  return scene;
}

describe.concurrent('of two new servers beside two old ones', () => {
  const scene = useScene(2);

  test.sequential('a server that was stopped while it carried doubles nothing when it goes on', async () => {
    const { oldA, oldB, first, second } = scene;
    const clients = await clientsOf([oldA, oldB, second]);
    const emitters = new Map([
      ['a', oldA],
      ['b', second],
    ]);
    const emitting = traffic(emitters, 500, 8);
    await eventually(() => clients.every((client) => client.values().length > 50), FIRST);
    first.pause();
    await eventually(() => terms(second) > 0, LEASE_ENDS);
    first.resume();
    await emitting;
    await allCame(clients, ['a', 'b'], 500);
  });

  test.sequential('a SIGKILL of the carrying server loses, doubles and turns around nothing', async () => {
    const { oldA, oldB, first, second } = scene;
    const [killed, spared] = [second, first];
    const before = terms(spared);
    const clients = await clientsOf([oldA, oldB, spared]);
    const emitters = new Map([
      ['c', oldA],
      ['d', oldB],
      ['e', spared],
    ]);
    const emitting = traffic(emitters, 500, 8);
    const last = killed.does('traffic', { name: 'f', count: 5000, everyMs: 8, rooms: ['t'] }).catch(() => 'killed');
    await eventually(() => clients.every((client) => client.values().includes('f-50')), FIRST);
    await killed.kill();
    expect(await last).toBe('killed');
    await eventually(() => terms(spared) > before, LEASE_ENDS);
    await emitting;
    await allCame(clients, ['c', 'd', 'e'], 500);
    // of what the killed server emitted all have seen the same, without a hole
    const ofKilled = clients.map((client) => client.values().filter((value) => String(value).startsWith('f-')));
    const count = (ofKilled[0] as unknown[]).length;
    expect(count).toBeGreaterThanOrEqual(50);
    for (const values of ofKilled) expect(faultsOf(values, ['f'], count)).toEqual([]);
  });
});

describe.concurrent('a new server beside two old ones', () => {
  const scene = useScene(1);

  test.sequential('Redis stands still for longer than a lease: what old servers wrote arrives once', async () => {
    const { own, oldA, oldB, first } = scene;
    const clients = await clientsOf([oldA, oldB, first]);
    const emitters = new Map([
      ['g', oldA],
      ['h', oldB],
    ]);
    const emitting = traffic(emitters, 500, 8);
    await eventually(() => clients.every((client) => client.values().length > 50), FIRST);
    own.pause();
    // a fault's length, not a wait for something
    await sleep(4000);
    own.resume();
    await emitting;
    await allCame(clients, ['g', 'h'], 500);
  });

  test.sequential('what a new term reads again is not appended again, also when its ids are forgotten', async () => {
    const { ofOwn, deploy, oldA, first } = scene;
    const keys = new Keys(`hf:${deploy.log}:`);
    const place = (await ofOwn.hget(keys.bridgePlaces, `in:${deploy.oldStream}`)) as string;
    const clients = await clientsOf([oldA, first]);
    const emitters = new Map([
      ['j', oldA],
      ['k', first],
    ]);
    await traffic(emitters, 50, 1);
    await allCame(clients, ['j', 'k'], 50);
    const before = terms(first);
    await ofOwn.set(keys.bridgeLease, 'a stranger', 'PX', 1500);
    await ofOwn.del(...keys.partition('socket.io', 0).ids);
    await ofOwn.hset(keys.bridgePlaces, `in:${deploy.oldStream}`, place, 'at', '1');
    await eventually(() => terms(first) > before, LEASE_ENDS);
    await traffic(new Map([['l', oldA]]), 50, 1);
    await allCame(clients, ['l'], 50);
    await allCame(clients, ['j', 'k'], 50);
  });

  test.sequential('more events than ids are remembered hold nothing up', async () => {
    const { ofOwn, deploy, oldA, first } = scene;
    const clients = await clientsOf([oldA, first]);
    const { ids } = new Keys(`hf:${deploy.log}:`).partition('socket.io', 0);
    const fill = `for i = 1, 200000 do redis.call('HSET', KEYS[1], 'x' .. i, '1-1') end`;
    for (const bucket of ids) await ofOwn.eval(fill, 1, bucket);
    await traffic(new Map([['i', oldA]]), 100, 1);
    await allCame(clients, ['i'], 100);
  });
});

test.concurrent('what is given back to the bridge is not appended again; written again it would be seen', async () => {
  await using deploy = new Deploy(redis.url);
  const old = await deploy.add('old');
  await old.does('emit', { rooms: ['t'], value: 'before' });
  await eventually(async () => (await direct.xlen(deploy.oldStream)) === 1, { what: 'an entry' });
  const first = await deploy.add('new');
  await deploy.gathered();
  const clients = await clientsOf([old, first]);
  const both = new Map([
    ['a', old],
    ['b', first],
  ]);
  await traffic(both, 50, 1);
  await allCame(clients, ['a', 'b'], 50);
  const { bridgePlaces: places, bridgeLease: lease } = new Keys(`hf:${deploy.log}:`);
  const out = (await direct.hget(places, 'out:0')) as string;
  await eventually(async () => expect(await direct.hget(places, 'out:0')).toMatch(/ 100$/), { what: 'all to be out' });
  first.pause();
  await direct.hset(places, `in:${deploy.oldStream}`, '0-0');
  await direct.del(lease);
  const second = await deploy.add('new');
  clients.push(...(await clientsOf([second])));
  await eventually(() => terms(second) > 0, LEASE_ENDS);
  // the one entry that was there before any bridge shows that all were read again
  const [, , newest] = clients as [TestClient, TestClient, TestClient];
  await newest.receives(['before']);
  await old.does('emit', { rooms: ['t'], value: 'end' });
  await newest.receives(['before', 'end']);
  // a control for the other way, where the place alone keeps events from being written twice
  await direct.hset(places, 'out:0', out.replace(/\d+ \d+$/, '0 0'));
  await second.does('emit', { rooms: ['t'], value: 'again' });
  const [ofOld] = clients as [TestClient];
  await eventually(() => ofOld.values().filter((value) => value === 'b-1').length === 2, { what: 'a planted double' });
  expect(
    faultsOf(
      ofOld.values().filter((value) => /^[ab]-/.test(String(value))),
      ['a', 'b'],
      50,
    ),
  ).not.toEqual([]);
});

test.concurrent('a server takes over while the log grows faster than it can be found at its end', async () => {
  await using deploy = new Deploy(redis.url);
  const [old, first] = [await deploy.add('old'), await deploy.add('new')];
  await eventually(() => terms(first) > 0, LEASE_ENDS);
  await using link = await startTcpProxy(redis.port);
  const second = await deploy.add('new', { REDIS_URL: `redis://127.0.0.1:${link.port}` });
  await deploy.gathered();
  const [a, b] = (await clientsOf([old, second])) as [TestClient, TestClient];
  const flooding = await deploy.add('new', { BRIDGED: '0' });
  await flooding.does('flood', { perMs: 0.5 });
  // what it has read is 30 ms old, and what it asks comes there 30 ms later
  link.delay(30);
  await first.kill();
  await old.does('emit', { rooms: ['t'], value: 'old' });
  await b.receives(['old']);
  await second.does('emit', { rooms: ['t'], value: 'new' });
  await a.receives(['old', 'new']);
  await flooding.does('unflood');
  expect(terms(second)).toBe(1);
});

test.concurrent('a server that takes over carries what one partition refused, and not again what another one took', async () => {
  const partitions = [2, 3, 4, 5].find((count) => partitionOf('/', count) !== partitionOf('/other', count)) as number;
  await using deploy = new Deploy(redis.url, undefined, { PARTITIONS: String(partitions) });
  const [old, first] = [await deploy.add('old'), await deploy.add('new')];
  await eventually(() => terms(first) > 0, LEASE_ENDS);
  const second = await deploy.add('new');
  await deploy.gathered();
  const refused = await second.client(['t']);
  const taken = await second.client(['t'], { namespace: '/other' });
  const keys = new Keys(`hf:${deploy.log}:`);
  const idsOf = (namespace: string) => keys.partition('socket.io', partitionOf(namespace, partitions)).ids;
  // no append with an id gets through
  for (const key of idsOf('/')) await direct.set(key, 'of another type');
  await old.does('emit', { rooms: ['t'], value: 'refused' });
  await old.does('emit', { namespace: '/other', rooms: ['t'], value: 'taken' });
  await taken.receives(['taken']);
  await first.kill();
  await direct.del(...idsOf('/'), ...idsOf('/other'));
  await refused.receives(['refused']);
  await old.does('emit', { namespace: '/other', rooms: ['t'], value: 'end' });
  await taken.receives(['taken', 'end']);
});
