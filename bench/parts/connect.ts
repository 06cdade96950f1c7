import { figuresOf, interleave, type Part, type Spec } from '../figures.js';
import type { Side } from '../side.js';
import { without, withSides } from '../sides.js';

const SOCKETS = 1000;
const ROOMS = [['news']];

/** What a connect costs a pod on which clients may recover later, and what somebody who is there costs it. */
export const connect: Part = {
  name: 'connect',
  run: (bench) =>
    withSides(without(bench.sides, 'floor'), async (sides) => {
      const count = bench.scaled(SOCKETS);
      for (const side of sides) {
        await side.connect(count, ROOMS);
        await side.leave();
      }
      const specs = {
        connect: { title: 'CPU per connect, recovery on', unit: 'µs', aim: { atMost: 1.1 } },
        perSecond: { title: 'connects, 32 at a time', unit: 'connects/s' },
        leave: { title: 'CPU per socket that is cut', unit: 'µs', isDetail: true },
        memory: { title: 'memory per idle socket, heap and buffers', unit: 'kB' },
      } satisfies Record<string, Spec>;
      return figuresOf(specs, await interleave(sides, bench.rounds, (side) => comeAndGo(side, count)));
    }),
};

async function comeAndGo(side: Side, count: number) {
  const before = await side.memory();
  const [idle] = await side.cpu();
  const wanted = { ...side.address, count, rooms: ROOMS };
  const { startedAt, endedAt } = await side.clients.ask<{ startedAt: number; endedAt: number }>('connect', wanted);
  await side.quiet();
  const [connected] = await side.cpu();
  const full = await side.memory();
  const [present] = await side.cpu();
  await side.leave();
  const [gone] = await side.cpu();
  return {
    connect: (connected - idle) / count,
    perSecond: count / ((endedAt - startedAt) / 1e6),
    leave: (gone - present) / count,
    memory: (full - before) / count / 1000,
  };
}
