import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Log } from '../../src/backend-log/index.js';
import { eventually } from '../harness/poll.js';
import { GroupRig, KEYS } from './rig.js';
import { put, range, Witness } from './witness.js';

let rig: GroupRig;
beforeAll(async () => {
  rig = await GroupRig.start();
});
afterAll(async () => {
  await rig?.[Symbol.asyncDispose]();
});

const SLOW = { withinMs: 20_000 } as const;
const PARTITIONS = 4;

test.each([
  ['shared', undefined],
  ['ordered', 'tenant' as const],
])('what a member has not begun when it is paused goes to another (%s)', async (_mode, orderedBy) => {
  const topic = rig.topic();
  const log = rig.log(topic);
  let letGo = (): void => {};
  const held = new Promise<void>((resolve) => {
    letGo = resolve;
  });
  // so long that nobody takes it for dead
  const options = { orderedBy, leaseMs: 60_000 };
  await using paused = await Witness.start(log, 'g', { ...options, concurrency: 4, handler: () => held });
  await put(log, range(0, 10));
  await eventually(() => paused.seen.length > 0);
  paused.reader.pause();
  const begun = paused.numbers;
  await using other = await Witness.start(log, 'g', options);
  if (orderedBy) letGo();
  const rest = range(0, 10).filter((n) => !begun.includes(n));
  await eventually(() => expect([...other.numbers].sort((a, b) => a - b)).toEqual(rest), SLOW);
  expect(paused.numbers).toEqual(begun);
  letGo();
  await eventually(async () => (await rig.pending(topic, 'g')) === 0);
  other.reader.pause();
  paused.reader.resume();
  await put(log, range(10, 12));
  await eventually(() => expect(paused.numbers).toEqual([...begun, 10, 11]), SLOW);
});

test('a handler that hangs holds a stop up for its time at most, and its entry goes to another at once', async () => {
  const topic = rig.topic();
  const log = rig.log(topic);
  const aborted: unknown[] = [];
  const hanging = await Witness.start(log, 'g', {
    ...{ leaseMs: 60_000, drainMs: 300, timeoutMs: 0 },
    handler: (_entry, { signal }) =>
      new Promise<void>(() => {
        signal.addEventListener('abort', () => aborted.push(signal.reason));
      }),
  });
  await put(log, [0]);
  await eventually(() => hanging.seen.length === 1);
  await hanging.reader.stop();
  expect(aborted).toMatchObject([{ code: 'shutting_down' }]);
  await using other = await Witness.start(log, 'g', { leaseMs: 500 });
  await eventually(() => expect(other.seen).toMatchObject([{ n: 0, deliveries: 2 }]), SLOW);
  await eventually(async () => (await rig.pending(topic, 'g')) === 0);
});

/** An entry per partition every few ms. */
class Trickle {
  readonly #keys: readonly string[];
  readonly #running: Promise<void>;
  #isOver = false;

  constructor(log: Log, keys: readonly string[]) {
    this.#keys = keys;
    this.#running = this.#run(log);
  }

  async stop(): Promise<void> {
    this.#isOver = true;
    await this.#running;
  }

  async #run(log: Log): Promise<void> {
    for (let n = 0; !this.#isOver; n += this.#keys.length) {
      await Promise.all(this.#keys.map((key, index) => put(log, [n + index], () => key)));
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

/** A key for each partition. */
async function keysOf(log: Log): Promise<readonly string[]> {
  const keys = new Map<number, string>();
  for (let n = 0; keys.size < PARTITIONS; n++) {
    const [entry] = await put(log, [-1], () => `key-${n}`);
    if (entry) keys.set(entry.partition, `key-${n}`);
  }
  return [...keys].sort(([a], [b]) => a - b).map(([, key]) => key);
}

/** The longest time at which a partition had nothing handled, and whether it stayed with one member. */
function standstill(partition: number, since: number, witnesses: readonly Witness[]) {
  const by = witnesses.filter(({ seen }) => seen.some((each) => each.partition === partition && each.at >= since));
  const times = witnesses
    .flatMap(({ seen }) => seen.filter((each) => each.partition === partition && each.at >= since))
    .map(({ at }) => at)
    .sort((a, b) => a - b);
  let ms = 0;
  for (const [index, at] of times.entries()) ms = Math.max(ms, at - (times[index - 1] ?? since));
  return { isMoved: by.length > 1, ms };
}

describe('when a member joins or leaves an ordered group', () => {
  test('no partition that stays where it is stands still for a second, and those that move not for long', async () => {
    const topic = rig.topic();
    const log = rig.log(topic, { partitions: PARTITIONS });
    const keys = await keysOf(log);
    const options = { orderedBy: 'tenant' as const, leaseMs: 2000 };
    const partitionsOf = async (witness: Witness): Promise<number[]> => {
      const details = await rig.admin.hget(KEYS.groupMembers(topic, 'g').details, witness.reader.id);
      return (JSON.parse(details ?? '{}') as { partitions?: number[] }).partitions ?? [];
    };
    const isSpread = async (witnesses: readonly Witness[]): Promise<void> => {
      const counts = await Promise.all(witnesses.map(async (witness) => (await partitionsOf(witness)).length));
      const least = Math.floor(PARTITIONS / witnesses.length);
      expect(counts.every((count) => count >= least)).toBe(true);
      expect(counts.reduce((sum, count) => sum + count, 0)).toBe(PARTITIONS);
    };
    await using one = await Witness.start(log, 'g', options);
    await eventually(() => isSpread([one]), SLOW);
    const trickle = new Trickle(log, keys);
    const all = [one];
    const check = async (what: string, change: () => Promise<readonly Witness[]>): Promise<void> => {
      const since = Date.now();
      const members = await change();
      await eventually(() => isSpread(members), { ...SLOW, what });
      const until = Date.now() + 300;
      await eventually(() => Date.now() > until);
      const found = range(0, PARTITIONS).map((partition) => standstill(partition, since, all));
      const stayed = found.filter(({ isMoved }) => !isMoved);
      expect(stayed.length, what).toBeGreaterThan(0);
      for (const { ms } of stayed) expect(ms, what).toBeLessThan(1000);
      // given away as soon as the handlers are done, and taken with the other's next beat
      for (const { ms } of found) expect(ms, what).toBeLessThan(2500);
    };
    let two: Witness | undefined;
    let three: Witness | undefined;
    try {
      await check('a second one joins', async () => {
        two = await Witness.start(log, 'g', options);
        all.push(two);
        return [one, two];
      });
      await check('a third one joins', async () => {
        three = await Witness.start(log, 'g', options);
        all.push(three);
        return [one, two as Witness, three];
      });
      await check('the second one leaves', async () => {
        await two?.reader.stop();
        return [one, three as Witness];
      });
    } finally {
      await trickle.stop();
      await two?.reader.stop();
      await three?.reader.stop();
    }
    const order = all.flatMap(({ seen }) => seen).sort((a, b) => a.at - b.at || a.offset - b.offset);
    for (const partition of range(0, PARTITIONS)) {
      const offsets = order.filter((each) => each.partition === partition).map(({ offset }) => offset);
      expect(offsets).toEqual([...offsets].sort((a, b) => a - b));
    }
  });
});
