import { figuresOf, interleave, type Part, type Spec } from '../figures.js';
import type { Side } from '../side.js';
import { withSides } from '../sides.js';

const SOCKETS = 1000;
const ROOMS = [['news']];

/** What a connect costs a pod on which clients may recover later, and what somebody who is there costs it. */
export const connect: Part = {
  name: 'connect',
  run: (bench) =>
    withSides(bench.sides, async (sides) => {
      const count = bench.scaled(SOCKETS);
      for (const side of sides) {
        await side.connect(count, ROOMS);
        await side.leave();
      }
      const specs = {
        connect: { title: 'CPU per connect, recovery on', unit: 'µs', aim: { atMost: 1.1 } },
        perSecond: { title: 'connects, 32 at a time', unit: 'connects/s' },
        leave: { title: 'CPU per socket that is cut', unit: 'µs' },
        heap: { title: 'memory per idle socket: heap and buffers', unit: 'kB' },
        rss: { title: 'memory per idle socket: RSS', unit: 'kB' },
      } satisfies Record<string, Spec>;
      return figuresOf(specs, await interleave(sides, bench.rounds, (side) => comeAndGo(side, count)));
    }),
};

interface Memory {
  readonly used: number;
  readonly rss: number;
}

async function comeAndGo(side: Side, count: number) {
  const memory = () => side.receiving.ask<Memory>('memory');
  const before = await memory();
  const [idle] = await side.cpu();
  const wanted = { ...side.address, count, rooms: ROOMS };
  const { startedAt, endedAt } = await side.clients.ask<{ startedAt: number; endedAt: number }>('connect', wanted);
  await side.quiet();
  const [connected] = await side.cpu();
  const full = await memory();
  const [present] = await side.cpu();
  await side.leave();
  const [gone] = await side.cpu();
  return {
    connect: (connected - idle) / count,
    perSecond: count / ((endedAt - startedAt) / 1e6),
    leave: (gone - present) / count,
    heap: (full.used - before.used) / count / 1000,
    rss: (full.rss - before.rss) / count / 1000,
  };
}
