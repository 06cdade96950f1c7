import { type Bench, type Figure, figuresOf, interleave, type Part, type Spec } from '../figures.js';
import { BURST, type Plan, type Side } from '../side.js';
import { withSides } from '../sides.js';

const SOCKETS = 50;
const ROOM = 'news';

interface Rate {
  readonly run: string;
  readonly perSecond: number;
  /** Of one round. */
  readonly count: number;
  /** What the CPU of a delivery should be at most, as a part of the streams adapter's; likewise the others. */
  readonly delivery: number;
  readonly publish?: number;
  readonly latency?: number;
}

const RATES: readonly Rate[] = [
  { run: 'burst', perSecond: BURST, count: 4000, delivery: 0.1, publish: 0.5 },
  { run: '2500', perSecond: 2500, count: 5000, delivery: 0.5 },
  { run: '1000', perSecond: 1000, count: 3000, delivery: 0.5 },
  { run: '300', perSecond: 300, count: 1200, delivery: 0.95, latency: 1 },
  { run: '50', perSecond: 50, count: 300, delivery: 0.85 },
];

/** What each event costs the pod that delivers it to 50 sockets, and the pod that published it. */
export const delivery: Part = {
  name: 'delivery',
  run: (bench) =>
    withSides(bench.sides, async (sides) => {
      for (const side of sides) {
        await side.connect(SOCKETS, [[ROOM]]);
        await warmUp(side);
      }
      const figures: Figure[] = [];
      for (const rate of RATES)
        if (bench.wants(`delivery:${rate.run}`) || bench.wants(`publish:${rate.run}`))
          figures.push(...(await atRate(bench, sides, rate)));
      return figures;
    }),
};

/** The same work for all; a burst and a trickle are different paths. */
async function warmUp(side: Side): Promise<void> {
  await side.publish({ count: 5000, rooms: [ROOM] }, { perSecond: BURST });
  await side.publish({ count: 1000, rooms: [ROOM] }, { perSecond: 500 });
}

async function atRate(bench: Bench, sides: readonly Side[], rate: Rate): Promise<Figure[]> {
  const { run, perSecond, count } = rate;
  const plan: Plan = { count: bench.scaled(count), rooms: [ROOM] };
  const when = perSecond === BURST ? 'in a burst' : `at ${perSecond.toLocaleString('en')}/s`;
  const atMost = (value: number | undefined) => (value === undefined ? { isDetail: true } : { aim: { atMost: value } });
  const specs = {
    delivery: { title: `CPU per delivery ${when}, ${SOCKETS} sockets`, unit: 'µs', ...atMost(rate.delivery) },
    publish: { title: `CPU per published event ${when}`, unit: 'µs', ...atMost(rate.publish) },
    p50: { title: `latency between pods ${when}, p50`, unit: 'ms', ...atMost(rate.latency) },
    p99: { title: `latency between pods ${when}, p99`, unit: 'ms', ...atMost(rate.latency) },
  } satisfies Record<string, Spec>;
  const taken = await interleave(sides, bench.rounds, async (side) => {
    const publish = () => side.publish(plan, { perSecond, isTimed: true });
    const cost = await bench.profiled(`delivery:${run}`, side.receiving, () =>
      bench.profiled(`publish:${run}`, side.sending, publish),
    );
    return {
      delivery: cost.receivingUs / cost.deliveries,
      publish: cost.sendingUs / cost.events,
      p50: cost.p50Ms,
      p99: cost.p99Ms,
    };
  });
  return figuresOf(specs, taken);
}
