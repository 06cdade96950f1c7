import { setTimeout as pass } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { describe, expect, test } from 'vitest';
import { FatalError } from '../../src/core/errors.js';
import { silentLogger, silentMeter } from '../../src/core/ports.js';
import { type HandOver, type InboxMessage, Pods, type PodsOptions } from '../../src/pods/index.js';
import { Keys } from '../../src/redis/keys.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';

const keys = new Keys('hf:');

/** One process, and what happened to it. */
class Process implements AsyncDisposable {
  readonly id: string;
  readonly pods: Pods;
  readonly buried: string[] = [];
  readonly heard: InboxMessage[] = [];
  returns = 0;
  losses = 0;

  constructor(
    readonly pod: string,
    options: Partial<PodsOptions> & Pick<PodsOptions, 'url'>,
  ) {
    this.id = `${pod}-${Math.random().toString(36).slice(2, 8)}`;
    const bury: HandOver = async (dead) => void this.buried.push(dead);
    this.pods = new Pods({
      keys,
      pod,
      processId: this.id,
      handOvers: [bury],
      onReturn: () => void this.returns++,
      onLost: () => void this.losses++,
      logger: silentLogger,
      meter: silentMeter,
      ...options,
    });
    this.pods.inbox.on('note', (message) => this.heard.push(message));
  }

  async start(): Promise<this> {
    await this.pods.start();
    return this;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.pods.stop();
  }
}

interface Scene {
  readonly redis: RedisProcess;
  readonly admin: Redis;
  readonly make: (pod: string, options?: Partial<PodsOptions>) => Process;
}

/** Each test has a Redis of its own, so that they wait side by side. */
const it = test.extend<Scene>({
  redis: async ({ task: _ }, use) => {
    await using redis = await startRedis({ aof: 'off' });
    await use(redis);
  },
  admin: async ({ redis }, use) => {
    const admin = new Redis(redis.url);
    await use(admin);
    admin.disconnect();
  },
  make: async ({ redis }, use) => use((pod, options) => new Process(pod, { url: redis.url, ...options })),
});

const processes = (admin: Redis): Promise<string[]> => admin.zrange(keys.processes, '0', '-1');

/** As a process that dies without a word: its lease runs out, its name and inbox stay. */
async function die(admin: Redis, id: string, pod: string): Promise<void> {
  await admin.zadd(keys.processes, 1, id);
  await admin.hset(keys.podNames, pod, id);
}

// the longest first: they wait more than they work
describe.concurrent('the reaper', () => {
  it('hands over what a dead process held, once, and removes it', async ({ admin, make }) => {
    await using a = await make('a').start();
    await using b = await make('b').start();
    await using c = await make('c').start();
    await die(admin, 'dead', 'd');
    await eventually(async () => expect((await processes(admin)).sort()).toEqual([a.id, b.id, c.id].sort()), {
      withinMs: 10_000,
    });
    await pass(1000);
    expect([...a.buried, ...b.buried, ...c.buried]).toEqual(['dead']);
    expect(Object.keys(await admin.hgetall(keys.podNames)).sort()).toEqual(['a', 'b', 'c']);
  });

  it('a hand-over that fails is tried again, and the process stays in the set until it is done', async ({
    admin,
    make,
  }) => {
    let tries = 0;
    const failsOnce: HandOver = async () => {
      if (++tries === 1) throw new Error('Redis went away');
    };
    await using a = await make('a', { handOvers: [failsOnce] }).start();
    await die(admin, 'dead', 'd');
    await eventually(() => tries === 1, { withinMs: 10_000 });
    expect(await processes(admin)).toContain('dead');
    await eventually(async () => expect(await processes(admin)).toEqual([a.id]), { withinMs: 10_000 });
    expect(tries).toBe(2);
  });

  it('who has not all the hand-overs does its own part once, and leaves the dead one to who has them', async ({
    admin,
    make,
  }) => {
    await using part = await make('part', { mayRemove: (dead) => dead.startsWith('rpc.') }).start();
    await Promise.all([die(admin, 'dead', 'd'), die(admin, 'rpc.dead', 'e')]);
    await eventually(async () => expect((await processes(admin)).sort()).toEqual(['dead', part.id].sort()), {
      withinMs: 10_000,
    });
    await using whole = await make('whole').start();
    await eventually(() => expect(whole.buried).toEqual(['dead']), { withinMs: 10_000 });
    await eventually(async () => expect((await processes(admin)).sort()).toEqual([part.id, whole.id].sort()));
    expect(part.buried.sort()).toEqual(['dead', 'rpc.dead']);
    // one that lived and died again is handed over again
    await pass(1000);
    await die(admin, 'dead', 'd');
    await eventually(() => expect(part.buried.filter((id) => id === 'dead')).toHaveLength(2), { withinMs: 10_000 });
  });

  it('a stall of Redis longer than a lease kills nobody', async ({ redis, admin, make }) => {
    await using a = await make('a').start();
    await using b = await make('b').start();
    await pass(3500); // both may judge by now
    redis.pause();
    await pass(4000);
    redis.resume();
    await eventually(async () => expect((await processes(admin)).sort()).toEqual([a.id, b.id].sort()));
    await pass(2000);
    expect([a.buried, b.buried, a.losses, b.losses]).toEqual([[], [], 0, 0]);
    // control: they do judge again
    await die(admin, 'dead', 'd');
    await eventually(() => expect([...a.buried, ...b.buried]).toEqual(['dead']), { withinMs: 10_000 });
  });

  it('a process that is cut off from Redis buries nobody when it is back', async ({ redis, admin, make }) => {
    await using proxy = await startTcpProxy(redis.port);
    await using a = await make('a', { url: `redis://127.0.0.1:${proxy.port}` }).start();
    await using b = await make('b').start();
    await pass(3500);
    proxy.blackhole(true);
    await eventually(() => expect(b.buried).toEqual([a.id]), { withinMs: 10_000 });
    proxy.blackhole(false);
    await eventually(() => expect(a.returns).toBe(1), { withinMs: 10_000 });
    expect(a.buried).toEqual([]);
    expect((await processes(admin)).sort()).toEqual([a.id, b.id].sort());
  });
});

describe.concurrent('the lease', () => {
  it('is there while the process runs, and gone when it has stopped', async ({ admin, make }) => {
    const a = await make('a').start();
    expect(await processes(admin)).toEqual([a.id]);
    await pass(4000); // longer than a lease
    expect(await processes(admin)).toEqual([a.id]);
    expect(Number(await admin.zscore(keys.processes, a.id))).toBeGreaterThan(Date.now());
    await a.pods.stop();
    expect([await processes(admin), await admin.hgetall(keys.podNames), await admin.exists(keys.inbox(a.id))]).toEqual([
      [],
      {},
      0,
    ]);
  });

  it('a living process keeps its name: a second one fails in one line and leaves nothing behind', async ({
    admin,
    make,
  }) => {
    await using a = await make('same').start();
    const b = make('same');
    await expect(b.start()).rejects.toBeInstanceOf(FatalError);
    expect(await processes(admin)).toEqual([a.id]);
    expect(a.losses).toBe(0);
    // and once the name is free, the same process may try again
    await a.pods.stop();
    await b.start();
    expect(await admin.hgetall(keys.podNames)).toEqual({ same: b.id });
    await b.pods.stop();
  });

  it('a dead one’s name is taken over after its lease', async ({ admin, make }) => {
    await admin.zadd(keys.processes, Date.now() + 1500, 'older');
    await admin.hset(keys.podNames, 'p', 'older');
    await using a = await make('p').start();
    expect(await admin.hget(keys.podNames, 'p')).toBe(a.id);
  });

  it('a process that was paused so long that its name is another’s now is told so', async ({ admin, make }) => {
    await using a = await make('p').start();
    await admin.hset(keys.podNames, 'p', 'newer');
    await eventually(() => expect(a.losses).toBe(1));
  });

  it('a process that was buried while it was paused says that it is back', async ({ admin, make }) => {
    await using a = await make('p').start();
    await admin.zrem(keys.processes, a.id);
    await admin.hdel(keys.podNames, 'p');
    await eventually(() => expect(a.returns).toBe(1));
    expect(await processes(admin)).toEqual([a.id]);
    expect(await admin.hget(keys.podNames, 'p')).toBe(a.id);
  });

  it('goes on being renewed when what listens to it fails', async ({ admin, make }) => {
    let returns = 0;
    const onReturn = (): void => {
      returns++;
      throw new Error('not handled');
    };
    await using a = await make('p', { onReturn }).start();
    for (let round = 1; round <= 2; round++) {
      await admin.zrem(keys.processes, a.id);
      await eventually(() => expect(returns).toBe(round));
    }
  });
});

describe.concurrent('the inbox', () => {
  const note = (n: number): InboxMessage => ({ type: 'note', n });

  it('brings messages in order, once', async ({ make }) => {
    await using a = await make('a').start();
    await using b = await make('b').start();
    for (let n = 0; n < 100; n++) expect(await a.pods.inbox.send(b.id, note(n))).toBe(true);
    await eventually(() => expect(b.heard.map(({ n }) => n)).toEqual(Array.from({ length: 100 }, (_, n) => n)));
  });

  it('a message to nobody makes nothing', async ({ admin, make }) => {
    await using a = await make('a').start();
    expect(await a.pods.inbox.send('nobody', note(1))).toBe(false);
    expect(await admin.exists(keys.inbox('nobody'))).toBe(0);
  });

  it('survives FLUSHALL within a few renewals', async ({ admin, make }) => {
    await using a = await make('a').start();
    await using b = await make('b').start();
    await admin.flushall();
    await eventually(() => a.pods.inbox.send(b.id, note(1)), { withinMs: 5000 });
    await eventually(() => expect(b.heard.map(({ n }) => n)).toEqual([1]));
  });

  it('a Redis whose clock is behind is listened to as well', async ({ redis, admin, make }) => {
    await using proxy = await startTcpProxy(redis.port);
    await using a = await make('a').start();
    await using b = await make('b', { url: `redis://127.0.0.1:${proxy.port}` }).start();
    // as if what b had read last came from a clock that was ahead
    await admin.xadd(keys.inbox(b.id), `${Date.now() + 600_000}-0`, 'm', JSON.stringify(note(1)));
    await eventually(() => expect(b.heard.length).toBe(1));
    await admin.del(keys.inbox(b.id));
    proxy.rst();
    await eventually(() => a.pods.inbox.send(b.id, note(2)), { withinMs: 5000 });
    await eventually(() => expect(b.heard.map(({ n }) => n)).toEqual([1, 2]));
  });

  it('what cannot be read, and a handler that throws, do not hold up the next', async ({ admin, make }) => {
    await using a = await make('a').start();
    a.pods.inbox.on('bad', () => {
      throw new Error('handler');
    });
    for (const text of ['', 'no json', 'null', '[]', '{"type":"unheard-of"}', '{"type":"bad"}'])
      await admin.xadd(keys.inbox(a.id), '*', 'm', text);
    await admin.xadd(keys.inbox(a.id), '*', 'x', 'y');
    await a.pods.inbox.send(a.id, note(1));
    await eventually(() => expect(a.heard.length).toBe(1));
  });

  it('hears itself, and listens no longer once it is stopped', async ({ make }) => {
    await using a = await make('a').start();
    await a.pods.hearSelf();
    await a.pods.stop();
    await expect(a.pods.hearSelf()).rejects.toThrow('stopped');
  });
});
