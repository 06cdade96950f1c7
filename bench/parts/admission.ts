import { AdmissionSide, type ConnectRun } from '../admission-side.js';
import { type Bench, type Figure, figuresOf, interleave, type Part, type Spec } from '../figures.js';
import { verdicts } from './verdicts.js';

const CONNECTS = 1000;
/** Under MONITOR, so not measured. */
const WATCHED = 200;

/** What it costs that somebody is let in, beside a stock server that only looks at the token; and what deciding costs by itself. */
export const admission: Part = {
  name: 'admission',
  async run(bench) {
    const figures = bench.wants('admission:connects') ? await connects(bench) : [];
    const isWanted =
      bench.doors.some((name) => name === 'postgres' || name === 'devices') &&
      ['verdict', 'verdicts', 'decisions'].some((run) => bench.wants(`admission:${run}`));
    return isWanted ? [...figures, ...(await verdicts(bench))] : figures;
  },
};

async function connects(bench: Bench): Promise<Figure[]> {
  // a round is short, so that more of them find the same machine more often
  const rounds = 2 * bench.rounds;
  const asked = { count: bench.scaled(CONNECTS), watched: WATCHED };
  const people = (rounds + 1) * (asked.count + asked.watched);
  const started = await Promise.allSettled(bench.doors.map((name) => AdmissionSide.start(name, people)));
  const sides = started.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value] : []));
  try {
    const failed = started.find((outcome) => outcome.status === 'rejected');
    if (failed) throw failed.reason;
    for (const side of sides) await side.run(asked);
    const taken = await interleave(sides, rounds, (side) =>
      side.run(asked, (work) => bench.profiled('admission:connects', side.pod, work)),
    );
    return figuresOf(SPECS, taken);
  } finally {
    await Promise.all(sides.map((side) => side[Symbol.asyncDispose]()));
  }
}

const BESIDE = { peer: 'bare', own: 'devices' } as const;

const SPECS = {
  podUs: { title: 'CPU of the pod per connect', unit: 'µs', ...BESIDE },
  perSecond: { title: 'connects, 32 at a time', unit: 'connects/s', ...BESIDE },
  redisUs: { title: 'CPU of Redis per connect', unit: 'µs' },
  postgresUs: { title: 'CPU of Postgres per connect', unit: 'µs' },
  sent: { title: 'commands to Redis per connect', unit: 'commands' },
  inside: { title: 'commands inside scripts per connect', unit: 'commands', isDetail: true },
  statements: { title: 'statements to Postgres per connect', unit: 'statements' },
} satisfies Record<keyof ConnectRun, Spec>;
