import { expect, test } from 'vitest';
import { recordEvidence } from '../harness/evidence.js';
import { type ChaosOptions, runChaos, type Takeover } from './chaos.js';
import { type Judgement, judge } from './handlings.js';

const CHAOS: ChaosOptions = {
  seed: Number(process.env.CHAOS_SEED ?? Date.now() % 1_000_000),
  isOrdered: false,
  members: 6,
  partitions: 4,
  entries: 20_000,
  keys: 96,
  perSecond: 300,
  leaseMs: 2000,
  handlerMs: 60,
  isMeasured: true,
  calmMs: 1000,
  restartsRedis: true,
};
/** Beats, and the question that follows one. */
const TAKEOVER_MS = CHAOS.leaseMs + 1000;

test('20,000 entries: members SIGKILLed, paused, joined and taken away, and Redis restarted', async () => {
  const figures: Record<string, object> = {};
  for (const isOrdered of [false, true]) {
    const run = await runChaos({ ...CHAOS, isOrdered });
    const judgement = judge(run.record);
    const { faults, takeovers, pending, deadLetters } = run;
    figures[isOrdered ? 'ordered' : 'shared'] = {
      ...{ faults, pending, deadLetters },
      ...countsOf(judgement),
      takeoverMs: { limit: TAKEOVER_MS, ...spreadOf(takeovers) },
    };
    expect({ seed: CHAOS.seed, isOrdered, ...judgement }).toMatchObject({
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
    // what the machine was late by is no fault of the group's: at the beat that sees the end of a lease, and at the one after it
    const slow = takeovers.filter(({ ms, controlMs }) => ms > TAKEOVER_MS + 2 * controlMs);
    expect({ seed: CHAOS.seed, isOrdered, slow }).toMatchObject({ slow: [] });
    expect(takeovers.length).toBeGreaterThan(0);
  }
  const { seed, members, partitions, entries, keys, perSecond, leaseMs } = CHAOS;
  await recordEvidence('group-chaos', { seed, members, partitions, entries, keys, perSecond, leaseMs, ...figures });
});

function countsOf(judgement: Judgement): object {
  return Object.fromEntries(
    Object.entries(judgement).map(([name, found]) => [name, Array.isArray(found) ? found.length : found]),
  );
}

function spreadOf(takeovers: readonly Takeover[]): object {
  const sorted = takeovers.map(({ ms }) => Math.round(ms)).sort((a, b) => a - b);
  const at = (part: number): number | undefined =>
    sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))];
  const controlMs = Math.round(Math.max(0, ...takeovers.map((each) => each.controlMs)));
  return { entries: sorted.length, median: at(0.5), p90: at(0.9), most: at(1), controlMs };
}
