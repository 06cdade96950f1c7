import { type Bench, type Figure, figuresOf, interleave, type Part, type Spec } from '../figures.js';
import { CallSide, type CallSideName, type Calls, type Level } from '../rpc-side.js';
import { registrations } from './registrations.js';

const ONE: Calls = { count: 1000, callers: 1 };
const MANY: Calls = { count: 5000, callers: 50 };
/** Under MONITOR, so not measured. */
const WATCHED: Calls = { count: 500, callers: 50 };

const LEVELS: Readonly<Record<Level, readonly CallSideName[]>> = {
  library: ['holdfast', 'bullmq'],
  sockets: ['holdfast', 'emitWithAck', 'fetchSockets'],
};

/** What a call costs and how long it takes: durable ones of ours, beside a stock queue's and what nobody keeps. */
export const rpc: Part = {
  name: 'rpc',
  async run(bench) {
    const figures = await calls(bench);
    const isWanted = bench.callSides.includes('holdfast') && bench.wants('rpc:registrations');
    return isWanted ? [...figures, ...(await registrations(bench))] : figures;
  },
};

async function calls(bench: Bench): Promise<Figure[]> {
  const sides = await start(bench);
  if (sides.length === 0) return [];
  try {
    for (const side of sides) await warmUp(side);
    // calls are short, so that more rounds find the same machine more often
    const taken = await interleave(sides, 2 * bench.rounds, (side) => measure(bench, side));
    const levels = (['library', 'sockets'] as const).filter((level) => bench.wants(`rpc:${level}`));
    return levels.flatMap((level) =>
      figuresOf(
        SPECS[level],
        taken.filter(({ side }) => side.level === level),
      ),
    );
  } finally {
    await Promise.all(sides.map((side) => side[Symbol.asyncDispose]()));
  }
}

async function start(bench: Bench): Promise<CallSide[]> {
  const wanted = Object.entries(LEVELS).flatMap(([level, names]) =>
    names
      .filter((name) => bench.callSides.includes(name) && bench.wants(`rpc:${level}`))
      .map((name) => CallSide.start(name, level as Level)),
  );
  const started = await Promise.allSettled(wanted);
  const sides = started.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value] : []));
  const failed = started.find((outcome) => outcome.status === 'rejected');
  if (!failed) return sides;
  await Promise.all(sides.map((side) => side[Symbol.asyncDispose]()));
  throw failed.reason;
}

/** The same work for all; one caller and many are different paths. */
async function warmUp(side: CallSide): Promise<void> {
  await side.run({ ...MANY, count: 2 * MANY.count });
  await side.run(ONE);
}

async function measure(bench: Bench, side: CallSide) {
  const { calling, serving } = side.processes;
  const one = await side.run({ ...ONE, count: bench.scaled(ONE.count) });
  const run = `rpc:${side.level}`;
  const many = await bench.profiled(run, calling, () =>
    bench.profiled(run, serving, () => side.run({ ...MANY, count: bench.scaled(MANY.count) })),
  );
  const { sent, inside } = await side.commands(WATCHED);
  return {
    p50: one.p50Ms,
    p99: one.p99Ms,
    perSecond: many.perSecond,
    busyP50: many.p50Ms,
    busyP99: many.p99Ms,
    cpu: many.callingUs + many.servingUs + many.redisUs,
    calling: many.callingUs,
    serving: many.servingUs,
    redis: many.redisUs,
    idleCpu: one.callingUs + one.servingUs + one.redisUs,
    sent,
    inside,
  };
}

type Measured = Awaited<ReturnType<typeof measure>>;

const SPECS: Readonly<Record<Level, Readonly<Record<keyof Measured, Spec>>>> = {
  library: specsOf('between processes', ['caller', 'worker'], {
    p50: { peer: 'bullmq' },
    perSecond: { peer: 'bullmq' },
    cpu: { peer: 'bullmq', aim: { atMost: 1 / 1.5 } },
  }),
  sockets: specsOf('between sockets', ["caller's pod", "daemon's pod"], {
    p50: { peer: 'emitWithAck', aim: { atMost: 1.5 } },
    perSecond: { peer: 'fetchSockets', aim: { atLeast: 2 } },
    cpu: { peer: 'fetchSockets' },
  }),
};

function specsOf(
  where: string,
  [calling, serving]: readonly [string, string],
  { p50, perSecond, cpu }: Readonly<Record<'p50' | 'perSecond' | 'cpu', Pick<Spec, 'peer' | 'aim'>>>,
): Record<keyof Measured, Spec> {
  const [one, many] = [`${where}, 1 caller`, `${where}, ${MANY.callers} callers`];
  const { peer } = p50;
  return {
    p50: { title: `${one}: p50`, unit: 'ms', ...p50 },
    p99: { title: `${one}: p99`, unit: 'ms', peer },
    perSecond: { title: many, unit: 'calls/s', ...perSecond },
    busyP50: { title: `${many}: p50`, unit: 'ms', peer, isDetail: true },
    busyP99: { title: `${many}: p99`, unit: 'ms', peer },
    cpu: { title: `${many}: CPU per call`, unit: 'µs', ...cpu },
    calling: { title: `… of the ${calling}`, unit: 'µs', peer: cpu.peer },
    serving: { title: `… of the ${serving}`, unit: 'µs', peer: cpu.peer },
    redis: { title: '… of Redis', unit: 'µs', peer: cpu.peer },
    idleCpu: { title: `${one}: CPU per call`, unit: 'µs', peer: cpu.peer, isDetail: true },
    sent: { title: `${many}: commands to Redis per call`, unit: 'commands', peer: cpu.peer },
    inside: { title: `${many}: commands inside scripts per call`, unit: 'commands', peer: cpu.peer, isDetail: true },
  };
}
