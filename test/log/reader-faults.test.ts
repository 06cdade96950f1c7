import { setTimeout as pass } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { EpochTurn } from '../../src/log/index.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { adminOf, KEYS, Ledger, startPod, type TestPod } from './rig.js';

/** So many of the load's events are accepted before a fault, and again after it. */
const SOME = 20;

/** Two pods at a Redis of their own, each behind its own proxy, under a steady load while `fault` happens; then the ledger of each must be exact. */
async function underLoad(
  fault: (on: {
    redis: RedisProcess;
    admin: ReturnType<typeof adminOf>;
    proxy: Awaited<ReturnType<typeof startTcpProxy>>;
    a: TestPod;
    b: TestPod;
    ledger: Ledger;
  }) => Promise<void>,
  then: (a: TestPod, b: TestPod, ledger: Ledger) => void | Promise<void> = () => {},
): Promise<void> {
  await using redis = await startRedis();
  await using admin = adminOf(redis.url);
  await using proxy = await startTcpProxy(redis.port);
  await using a = await startPod('a', { url: `redis://127.0.0.1:${proxy.port}` });
  await using b = await startPod('b', { url: redis.url });
  const ledger = new Ledger(admin);
  let probes = 0;
  await ledger.during([a, b], async () => {
    const flows = async (): Promise<void> => {
      const due = ledger.accepted.size + SOME;
      await eventually(() => ledger.accepted.size >= due, { withinMs: 15_000, what: 'the load to flow' });
    };
    await flows();
    await fault({ redis, admin, proxy, a, b, ledger });
    await flows();
    // it must work again after the fault
    const worksAgain = async (): Promise<void> => {
      for (const pod of [a, b]) {
        const id = `again-${++probes}`;
        await pod.append(id);
        await eventually(() => pod.ids.includes(id), { withinMs: 1000 });
      }
    };
    await eventually(worksAgain, { withinMs: 15_000, what: 'both pods to append and read again' });
  });
  for (const pod of [a, b]) await ledger.settle(pod);
  expect(ledger.slowestMs).toBeLessThan(3000);
  await then(a, b, ledger);
}

/** A reader that lost nothing learns of a new epoch by its heartbeat. */
async function turned({ turns }: TestPod, reason: EpochTurn['reason']): Promise<void> {
  await eventually(() => expect(turns.map((turn) => turn.reason)).toEqual([reason]), { withinMs: 10_000 });
}

describe.concurrent('keys that vanish', () => {
  it('DEL of the stream is one new epoch whose gap names what was lost', () =>
    underLoad(
      async ({ admin }) => {
        await admin.del(KEYS.stream);
      },
      async (a, b) => {
        for (const pod of [a, b]) await turned(pod, 'deleted');
      },
    ));

  it('DEL of the meta loses nothing and names nothing', () =>
    underLoad(
      async ({ admin }) => {
        await admin.del(KEYS.meta);
      },
      async (a, b) => {
        for (const pod of [a, b]) {
          await turned(pod, 'meta');
          expect(pod.gaps).toEqual([]);
        }
      },
    ));

  it('DEL of the saved positions fences nobody', () =>
    underLoad(
      async ({ admin }) => {
        await admin.del(KEYS.offsets);
      },
      (a, b) => {
        expect([a.isFenced, b.isFenced]).toEqual([false, false]);
        expect(a.turns).toEqual([]);
      },
    ));

  it('FLUSHALL is one new epoch, and delivery goes on', () =>
    underLoad(
      async ({ admin }) => {
        await admin.flushall();
      },
      async (a, b) => {
        for (const pod of [a, b]) await turned(pod, 'new');
        expect([a.isFenced, b.isFenced]).toEqual([false, false]);
      },
    ));

  it('SCRIPT FLUSH is not noticed', () =>
    underLoad(
      async ({ admin }) => {
        for (let round = 0; round < 10; round++) {
          await admin.script('FLUSH');
          await pass(50);
        }
      },
      (a, _b, ledger) => {
        expect(a.turns).toEqual([]);
        expect([...ledger.refused, ...ledger.unknown]).toEqual([]);
      },
    ));
});

describe.concurrent('the wire', () => {
  it('CLIENT KILL of everybody loses nothing', () =>
    underLoad(
      async ({ admin }) => {
        for (let round = 0; round < 5; round++) {
          await admin.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
          await pass(200);
        }
      },
      (a) => expect([a.gaps, a.turns]).toEqual([[], []]),
    ));

  it('RST of all connections loses nothing', () =>
    underLoad(
      async ({ proxy }) => {
        for (let round = 0; round < 5; round++) {
          proxy.rst();
          await pass(200);
        }
      },
      (a) => expect([a.gaps, a.turns]).toEqual([[], []]),
    ));

  it.each([2000, 6000])('a black hole of %i ms loses nothing', (ms) =>
    underLoad(
      async ({ proxy }) => {
        proxy.blackhole(true);
        await pass(ms);
        proxy.blackhole(false);
      },
      (a) => expect([a.gaps, a.turns]).toEqual([[], []]),
    ),
  );

  it('a Redis that stands still for 3 s loses nothing, and nothing refused appears', () =>
    underLoad(
      async ({ a, redis, ledger }) => {
        redis.pause();
        await pass(3000);
        await eventually(() => ledger.refused.size + ledger.unknown.size > 0);
        redis.resume();
        await eventually(() => a.log.stallMs === 0);
      },
      (_a, _b, ledger) => expect(ledger.refused.size + ledger.unknown.size).toBeGreaterThan(0),
    ));
});
