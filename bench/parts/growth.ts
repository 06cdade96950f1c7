import { type Bench, type Figure, figuresOf, interleave, type Part } from '../figures.js';
import { BURST, type Side } from '../side.js';
import { without, withSides } from '../sides.js';

const SOCKETS = [50, 500, 5000];
const DELIVERIES = 200_000;

const MEMBERS = 50;
const ROOMS = [1, 100, 10_000];
const EVENTS = 8000;
/** Prime, so that one event's room is never the neighbour of the last one's. */
const STRIDE = 7919;

/** How the cost of a burst grows with the sockets of one room, and with the rooms of which each event meets one. */
export const growth: Part = {
  name: 'growth',
  async run(bench) {
    const sockets = await withSides(bench.sides, (sides) => bySockets(bench, sides));
    // the floor has no rooms
    return [...sockets, ...(await withSides(without(bench.sides, 'floor'), (sides) => byRooms(bench, sides)))];
  },
};

async function bySockets(bench: Bench, sides: readonly Side[]): Promise<Figure[]> {
  const figures: Figure[] = [];
  let present = 0;
  for (const sockets of SOCKETS) {
    const plan = { count: bench.scaled(DELIVERIES / sockets), rooms: ['news'] };
    for (const side of sides) {
      await side.connect(sockets - present, [plan.rooms]);
      await side.publish(plan, { perSecond: BURST });
    }
    present = sockets;
    const title = `CPU per delivery in a burst, ${sockets.toLocaleString('en')} sockets`;
    const measured = interleave(sides, bench.rounds, async (side) => {
      const { receivingUs, deliveries } = await side.publish(plan, { perSecond: BURST });
      return { us: receivingUs / deliveries };
    });
    figures.push(...figuresOf({ us: { title, unit: 'µs' } }, await measured));
  }
  return figures;
}

async function byRooms(bench: Bench, sides: readonly Side[]): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const count of ROOMS) {
    const rooms = Array.from({ length: count }, (_, i) => `room-${(i * STRIDE) % count}`);
    const members = Array.from({ length: MEMBERS }, (_, i) => rooms.filter((_, room) => room % MEMBERS === i));
    const plan = { count: bench.scaled(EVENTS), rooms };
    for (const side of sides) {
      await side.connect(MEMBERS, members);
      await side.publish(plan, { perSecond: BURST });
    }
    const title = `CPU per event to one socket in a burst, ${count.toLocaleString('en')} rooms`;
    const measured = interleave(sides, bench.rounds, async (side) => {
      const { receivingUs, events } = await side.publish(plan, { perSecond: BURST });
      return { us: receivingUs / events };
    });
    figures.push(...figuresOf({ us: { title, unit: 'µs' } }, await measured));
    for (const side of sides) await side.leave();
  }
  return figures;
}
