import { figuresOf, interleave, type Part } from '../figures.js';
import { BURST } from '../side.js';
import { withSides } from '../sides.js';

const ROOM = 'news';
/** The streams adapter trims its stream to 10,000 entries, read or not. */
const EVENTS = 8000;

/** How fast one subscriber gets what a publisher in a hurry emits. */
export const throughput: Part = {
  name: 'throughput',
  run: (bench) =>
    withSides(bench.sides, async (sides) => {
      for (const side of sides) await side.connect(1, [[ROOM]]);
      const plan = { count: bench.scaled(EVENTS), rooms: [ROOM] };
      for (const side of sides) await side.publish(plan, { perSecond: BURST });
      const specs = { perSecond: { title: 'to one subscriber', unit: 'events/s', aim: { atLeast: 2 } } };
      const taken = await interleave(sides, bench.rounds, async (side) => {
        const { events, wallMs } = await bench.profiled('throughput:receiving', side.receiving, () =>
          bench.profiled('throughput:sending', side.sending, () => side.publish(plan, { perSecond: BURST })),
        );
        return { perSecond: (events / wallMs) * 1000 };
      });
      return figuresOf(specs, taken);
    }),
};
