import { setTimeout as pass } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { recordEvidence } from '../harness/evidence.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { adminOf, bodyOf, KEYS, Ledger, startPod } from './rig.js';

const SECONDS = Number(process.env.CHAOS_SECONDS ?? 60);

/** A random number that a seed repeats (mulberry32). */
function seeded(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

it('three pods under faults at random, several at once: the ledger stays exact', {
  timeout: (SECONDS + 60) * 1000,
}, async () => {
  const seed = Number(process.env.CHAOS_SEED ?? Date.now() % 1_000_000);
  const random = seeded(seed);
  const pick = <T>(from: readonly T[]): T => from[Math.floor(random() * from.length)] as T;
  await using redis = await startRedis();
  await using admin = adminOf(redis.url);
  const proxies = await Promise.all([0, 1, 2].map(() => startTcpProxy(redis.port)));
  const pods = await Promise.all(proxies.map(({ port }, n) => startPod(`p${n}`, { url: `redis://127.0.0.1:${port}` })));
  const ledger = new Ledger(admin);
  const log: string[] = [];
  const say = (what: string): void => void log.push(`${Math.round(performance.now())} ${what}`);

  const ofOne: Record<string, (n: number) => Promise<void>> = {
    rst: async (n) => void proxies[n]?.rst(),
    blackhole: async (n) => {
      proxies[n]?.blackhole(true);
      await pass(random() * 3000);
      proxies[n]?.blackhole(false);
    },
    dropReplies: async (n) => {
      proxies[n]?.dropReplies(true);
      await pass(random() * 1500);
      proxies[n]?.dropReplies(false);
      // TCP loses nothing in the middle of a connection
      proxies[n]?.rst();
    },
    hold: async (n) => {
      proxies[n]?.holdRequests(true);
      await pass(random() * 2500);
      proxies[n]?.holdRequests(false);
    },
    destroy: async (n) => void (await admin.xgroup('DESTROY', KEYS.stream, `pod:p${n}`).catch(() => {})),
    setId: async (n) =>
      void (await admin.xgroup('SETID', KEYS.stream, `pod:p${n}`, pick(['$', '0', '9999999999999-0'])).catch(() => {})),
    steal: async (n) =>
      void (await admin
        .xreadgroup('GROUP', `pod:p${n}`, 'thief', 'COUNT', 5, 'BLOCK', 20, 'STREAMS', KEYS.stream, '>')
        .catch(() => {})),
  };
  const ofAll: Record<string, () => Promise<void>> = {
    kill: async () => void (await admin.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')),
    scripts: async () => void (await admin.script('FLUSH')),
    stranger: async () =>
      void (await admin.xadd(
        KEYS.stream,
        '*',
        ...pick([
          ['x', 'y'],
          ['d', bodyOf('stranger')],
        ]),
      )),
    pause: async () => {
      redis.pause();
      await pass(random() * 2500);
      redis.resume();
    },
    meta: async () => void (await admin.del(KEYS.meta)),
    positions: async () => void (await admin.del(KEYS.offsets)),
  };

  let isOver = false;
  const torment = async (): Promise<void> => {
    while (!isOver) {
      const [name, fault] = random() < 0.7 ? pick(Object.entries(ofOne)) : pick(Object.entries(ofAll));
      const n = Math.floor(random() * 3);
      say(`${name} ${n}`);
      await fault(n);
      await pass(random() * 500);
    }
  };
  await ledger.during(
    pods,
    async () => {
      const tormentors = [torment(), torment()];
      await pass(SECONDS * 1000);
      isOver = true;
      await Promise.all(tormentors);
      await pass(2000);
    },
    150,
    3,
  );
  try {
    for (const pod of pods) {
      await ledger.settle(pod, 20_000);
      expect(pod.gaps).toEqual([]); // nothing of this loses an entry
      expect(pod.isFenced).toBe(false);
    }
    expect(ledger.slowestMs).toBeLessThan(4000);
    await eventually(() => pods.every((pod) => pod.log.stallMs === 0));
    await recordEvidence('chaos', {
      seed,
      seconds: SECONDS,
      pods: pods.length,
      faults: log.length,
      accepted: ledger.accepted.size,
      refused: ledger.refused.size,
      unknown: ledger.unknown.size,
      slowestAnswerMs: Math.round(ledger.slowestMs),
    });
  } catch (error) {
    throw new Error(`CHAOS_SEED=${seed}\n${log.slice(-60).join('\n')}`, { cause: error });
  } finally {
    for (const pod of pods) await pod.log.stop();
    for (const proxy of proxies) await proxy.stop();
  }
});
