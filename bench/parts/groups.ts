import { createLog } from '../../src/backend-log/index.js';
import { eventually } from '../../test/harness/poll.js';
import { startRedis } from '../../test/harness/redis.js';
import { cpuUs } from '../cpu-time.js';
import { type Bench, type Figure, figuresOf, interleave, type Part, type Spec } from '../figures.js';
import { GroupSide } from '../group-side.js';
import { Worker } from '../worker.js';

const BACKLOG = 40_000;
/** BullMQ needs its time for that. */
const JOBS = 8000;
const MANY = 4;
const APPENDS = 4000;
const GROUPS = [1, 10, 100];

/** What a back end's group costs: a backlog worked through by one member and by four, and what groups cost the publisher. */
export const groups: Part = {
  name: 'groups',
  async run(bench) {
    const figures = await backlog(bench);
    const isWanted = bench.groupSides.includes('holdfast') && bench.wants('groups:publish');
    return isWanted ? [...figures, ...(await publishing(bench))] : figures;
  },
};

async function backlog(bench: Bench): Promise<Figure[]> {
  const sides = await Promise.all(bench.groupSides.map((name) => GroupSide.start(name)));
  try {
    const taken = await interleave(sides, bench.rounds, async (side) => {
      const count = bench.scaled(side.name === 'bullmq' ? JOBS : BACKLOG);
      const one = await side.run(bench, count, 1);
      const many = await side.run(bench, count, MANY);
      // the others have no such thing; by hand it is always so many at once
      const isOurs = side.name === 'holdfast';
      const batch = isOurs ? await side.run(bench, count, 1, 'batch') : one;
      const ordered = isOurs ? await side.run(bench, count, 1, 'ordered') : undefined;
      return {
        oneRate: one.perSecond,
        oneCpu: one.membersUs + one.redisUs,
        oneMember: one.membersUs,
        oneRedis: one.redisUs,
        batchCpu: batch.membersUs + batch.redisUs,
        manyRate: many.perSecond,
        manyCpu: many.membersUs + many.redisUs,
        orderedRate: ordered?.perSecond ?? Number.NaN,
        orderedCpu: ordered ? ordered.membersUs + ordered.redisUs : Number.NaN,
      };
    });
    return figuresOf(SPECS, taken).map((figure) => ({ ...figure, samples: known(figure.samples) }));
  } finally {
    await Promise.all(sides.map((side) => side[Symbol.asyncDispose]()));
  }
}

/** Without the sides that have no such thing. */
function known(samples: Figure['samples']): Figure['samples'] {
  return Object.fromEntries(
    Object.entries(samples).filter(([, values]) => values?.every((value) => !Number.isNaN(value))),
  );
}

const SPECS: Readonly<Record<string, Spec>> = {
  oneRate: { title: '1 member', unit: 'entries/s', peer: 'bullmq', aim: { atLeast: 5 } },
  oneCpu: { title: '1 member: CPU per entry', unit: 'µs', peer: 'byHand', aim: { atMost: 1.3 } },
  oneMember: { title: '… of the member', unit: 'µs', peer: 'byHand' },
  oneRedis: { title: '… of Redis', unit: 'µs', peer: 'byHand' },
  batchCpu: { title: '1 member, a handler for 100: CPU per entry', unit: 'µs', peer: 'byHand', aim: { atMost: 1.3 } },
  manyRate: { title: `${MANY} members`, unit: 'entries/s', peer: 'bullmq', aim: { atLeast: 5 } },
  manyCpu: { title: `${MANY} members: CPU per entry`, unit: 'µs', peer: 'byHand', aim: { atMost: 1.3 } },
  orderedRate: { title: '1 member, in order per key', unit: 'entries/s' },
  orderedCpu: { title: '1 member, in order per key: CPU per entry', unit: 'µs' },
};

/** A topic with so many groups, each with a member that is idle but for what is appended. */
async function publishing(bench: Bench): Promise<Figure[]> {
  const samples = new Map<string, number[]>();
  const add = (title: string, value: number): void => void samples.set(title, [...(samples.get(title) ?? []), value]);
  for (let round = 0; round < bench.rounds; round++) {
    for (const count of GROUPS) {
      await using redis = await startRedis({ aof: 'off' });
      const topic = 'many';
      const settings = JSON.stringify({ name: 'holdfast', redisUrl: redis.url, topic });
      await using members = new Worker('members', 'group-members.mjs', [settings]);
      await using publisher = createLog(redis.url, { topic });
      await members.ask('joinMany', { count });
      const appends = bench.scaled(APPENDS);
      const [redisFrom, own, from] = [await cpuUs(redis.pid), process.cpuUsage(), performance.now()];
      for (let n = 0; n < appends; n += 20)
        await Promise.all(Array.from({ length: 20 }, (_, i) => publisher.append({ event: 'e', data: { n: n + i } })));
      const wallMs = performance.now() - from;
      const { user, system } = process.cpuUsage(own);
      const isDone = async () => (await members.ask<{ handled: number }>('handled')).handled === appends * count;
      await eventually(isDone, { withinMs: 120_000 });
      const redisUs = (await cpuUs(redis.pid)) - redisFrom;
      const title = count === 1 ? '1 group' : `${count} groups`;
      add(`${title}: CPU of the publisher per append, 20 at once`, (user + system) / appends);
      add(`${title}: an append's answer, 20 at once`, (wallMs / appends) * 20);
      add(`${title}: CPU of Redis per delivery`, redisUs / (appends * count));
    }
  }
  return [...samples].map(([title, values]) => ({
    title,
    unit: title.includes('CPU') ? 'µs' : 'ms',
    samples: { holdfast: values },
  }));
}
