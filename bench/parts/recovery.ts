import { type Bench, type Figure, figuresOf, interleave, type Part, type Spec } from '../figures.js';
import { BURST, type Plan, Side } from '../side.js';
import { without, withSides } from '../sides.js';

const SOCKETS = 1000;
const MISSED = 500;
/** Holds some of the entries that are missed, never the oldest. */
const SMALL_RING_BYTES = 64 * 1024;
const WARM_UP_CONCURRENCY = 8;

interface Scenario {
  readonly run: string;
  readonly title: string;
  /** The i-th subscriber joins `rooms[i % rooms.length]`. */
  readonly rooms: readonly (readonly string[])[];
  /** Published before all are cut: gives everybody a position. */
  readonly seen: Plan;
  /** Published while they are away: `MISSED` for each. */
  readonly missed: Plan;
}

const own = Array.from({ length: SOCKETS }, (_, i) => `own-${i}`);
const halfOf = (i: number): string => `half-${i % 2}`;
const alike: Scenario = {
  run: 'alike',
  title: 'one room',
  rooms: [['news']],
  seen: { count: 1, rooms: ['news'] },
  missed: { count: MISSED, rooms: ['news'] },
};

/** Each socket has a room of its own and a position of its own, and misses one event there among those of a room for many. */
const unlike: Scenario = {
  run: 'unlike',
  title: 'positions and rooms all differ',
  rooms: own.map((room, i) => [room, halfOf(i)]),
  seen: { count: SOCKETS, rooms: own },
  missed: {
    count: SOCKETS + 2 * (MISSED - 1),
    rooms: own.flatMap((room, i) => (i < 2 * (MISSED - 1) ? [room, halfOf(i)] : [room])),
  },
};

/** What a pod goes through when a thousand clients come back at once, each of which missed 500 events. */
export const recovery: Part = {
  name: 'recovery',
  async run(bench) {
    const figures: Figure[] = [];
    for (const scenario of [alike, unlike])
      if (bench.wants(`recovery:${scenario.run}`)) figures.push(...(await compare(bench, scenario)));
    return figures;
  },
};

function compare(bench: Bench, scenario: Scenario): Promise<Figure[]> {
  // these recover nothing
  const names = without(bench.sides, 'pubsub', 'floor');
  return withSides(names, async (sides) => {
    const isBehindToo = scenario === alike && names.includes('holdfast');
    await using behind = isBehindToo ? await Side.start('holdfast', { ringBytes: SMALL_RING_BYTES }) : undefined;
    const contestants = behind ? [...sides, behind] : sides;
    const count = bench.scaled(SOCKETS);
    for (const side of contestants) {
      await side.connect(count, scenario.rooms);
      await warmUp(side, scenario);
    }
    const taken = await interleave(contestants, bench.rounds, (side) => round(bench, side, scenario, count));
    const title = `recovery of ${count.toLocaleString('en')} sockets × ${MISSED} events`;
    const inside = taken.filter(({ side }) => side !== behind);
    const figures = figuresOf(specsOf(`${title}, ${scenario.title}`, 1 / 8, { aim: { limit: 0 } }), inside);
    if (!behind) return figures;
    const beyond = taken.filter(({ side }) => side === behind || side.name !== 'holdfast');
    return [...figures, ...figuresOf(specsOf(`${title}, ${scenario.title}, behind the ring`, 1 / 5, {}), beyond)];
  });
}

const specsOf = (title: string, cpu: number, reads: object) =>
  ({
    wall: { title: `${title}: wall`, unit: 's', aim: { atMost: 1 / 5 } },
    cpu: { title: `${title}: CPU`, unit: 's', aim: { atMost: cpu } },
    blocked: { title: `${title}: loop blocked at most`, unit: 'ms', aim: { limit: 500 } },
    rss: { title: `${title}: highest RSS`, unit: 'MB', isDetail: true },
    reads: { title: `${title}: reads of the stream`, unit: 'XRANGE', ...reads },
  }) satisfies Record<string, Spec>;

/** Everybody comes back once, a few at a time, so that the code has run. */
async function warmUp(side: Side, { seen }: Scenario): Promise<void> {
  await side.publish(seen, { perSecond: BURST });
  await side.cutAll();
  await side.clients.ask('resume', { port: side.address.port, concurrency: WARM_UP_CONCURRENCY });
  await side.quiet();
}

async function round(bench: Bench, side: Side, { run, seen, missed }: Scenario, count: number) {
  await side.publish(seen, { perSecond: BURST });
  await side.cutAll();
  await side.clients.ask('expect', { plan: missed });
  await side.sending.ask('publish', { plan: missed, perSecond: BURST });
  await side.quiet();

  await side.receiving.ask('watch');
  const [before] = await side.cpu();
  const [back, reads] = await side.countingReads(() =>
    bench.profiled(`recovery:${run}`, side.receiving, () => comeBack(side)),
  );
  await side.quiet();
  const [after] = await side.cpu();
  const { blockedMs, peakRss } = await side.receiving.ask<{ blockedMs: number; peakRss: number }>('strain');
  if (back.recovered < count) throw new Error(`${side.name}: ${back.recovered} of ${count} sockets recovered`);
  return {
    wall: (back.arrivedAt - back.startedAt) / 1e6,
    cpu: (after - before) / 1e6,
    blocked: blockedMs,
    rss: peakRss / 1e6,
    reads,
  };
}

async function comeBack(side: Side) {
  const { startedAt, recovered } = await side.clients.ask<{ startedAt: number; recovered: number }>('resume', {
    port: side.address.port,
  });
  const { arrivedAt } = await side.clients.ask<{ arrivedAt: number }>('arrived', { withinMs: 300_000 });
  return { startedAt, recovered, arrivedAt };
}
