import { describe, expect, test } from 'vitest';
import { type ChaosOptions, runChaos } from './chaos.js';
import { judge } from './handlings.js';

const CHAOS: ChaosOptions = {
  seed: Date.now() % 1_000_000,
  isOrdered: false,
  members: 4,
  partitions: 3,
  entries: 2000,
  keys: 24,
  perSecond: 330,
  leaseMs: 1000,
  handlerMs: 15,
  isMeasured: false,
  calmMs: 300,
  restartsRedis: false,
};

describe('with members that are killed, paused, joined and taken away', () => {
  test.each([
    ['a shared group handles every entry', false],
    ['an ordered group handles every entry, and those of each key in order', true],
  ])('%s', async (_name, isOrdered) => {
    const { record, faults, pending, deadLetters } = await runChaos({ ...CHAOS, isOrdered });
    expect({ seed: CHAOS.seed, ...judge(record) }).toMatchObject({
      handled: CHAOS.entries,
      lost: [],
      phantoms: [],
      outOfOrder: [],
      overlapped: [],
      unexplained: [],
      unfenced: [],
      withoutLease: [],
    });
    expect({ pending, deadLetters }).toEqual({ pending: 0, deadLetters: 0 });
    for (const count of [faults.kill, faults.longPause, faults.shortPause, faults.leave, faults.join])
      expect(count).toBeGreaterThan(0);
  });
});
