import { figuresOf, interleave, type Part, type Spec } from '../figures.js';
import { BURST, type Side } from '../side.js';
import { without, withSides } from '../sides.js';

const SOCKETS = 10;
const EVENTS = 5000;
const ROOM = 'news';

/** What a pod keeps of delivered events, for clients who come back: only Holdfast keeps any. */
export const ring: Part = {
  name: 'ring',
  run: (bench) =>
    withSides(without(bench.sides, 'streams', 'pubsub', 'floor'), async (sides) => {
      for (const side of sides) {
        await side.connect(SOCKETS, [[ROOM]]);
        await publish(side, EVENTS);
      }
      const specs = { bytes: { title: 'memory per entry of the ring', unit: 'bytes' } } satisfies Record<string, Spec>;
      const taken = await interleave(sides, bench.rounds, async (side) => {
        const before = await side.memory();
        await publish(side, EVENTS);
        return { bytes: ((await side.memory()) - before) / EVENTS };
      });
      return figuresOf(specs, taken);
    }),
};

const publish = (side: Side, count: number) => side.publish({ count, rooms: [ROOM] }, { perSecond: BURST });
