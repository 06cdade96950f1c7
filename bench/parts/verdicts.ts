import { eventually } from '../../test/harness/poll.js';
import { startRedis } from '../../test/harness/redis.js';
import { startTcpProxy } from '../../test/harness/tcp-proxy.js';
import { AdmissionDatabase, TENANT } from '../admission-database.js';
import type { DoorName } from '../admission-side.js';
import { cpuUs } from '../cpu-time.js';
import type { Bench, Figure } from '../figures.js';
import { Worker } from '../worker.js';

const ONE_BY_ONE = 1000;
const CROWD = 2000;
const CROWDS = 5;
/** Two thousand a second for as long as several tries of Postgres take. */
const STORM = { count: 8000, atOnce: 40, everyMs: 20 };
const DEVICES = 20_000;

/** What deciding costs without sockets: a verdict, with Postgres and while it is silent, and a device session. */
export async function verdicts(bench: Bench): Promise<Figure[]> {
  await using redis = await startRedis({ aof: 'off' });
  await using database = await AdmissionDatabase.start(DEVICES);
  await using proxy = await startTcpProxy(database.server.port);
  const start = async (databaseUrl: string): Promise<Worker> => {
    const settings = { redisUrl: redis.url, databaseUrl, tenant: TENANT, devices: DEVICES };
    const rooms = new Worker('admission', 'admission-rooms.mjs', [JSON.stringify(settings)], ['--expose-gc']);
    await rooms.ask('listen');
    return rooms;
  };
  await using rooms = await start(database.url);
  // a proxy on the way would count as the server's time, so that only the outage goes through one
  await using cut = await start(database.server.urlOf(new URL(database.url).pathname.slice(1), proxy.port));
  const one = { count: bench.scaled(ONE_BY_ONE), atOnce: 1 };
  const crowd = { count: bench.scaled(CROWDS) * CROWD, atOnce: CROWD };

  const healthy = async (asked: Asked) => rooms.ask<Each>('verdicts', asked);
  const decided = async (asked: Asked) => {
    const redisFrom = await cpuUs(redis.pid);
    const each = await rooms.ask<Each>('decisions', asked);
    const redisUs = ((await cpuUs(redis.pid)) - redisFrom) / asked.count;
    return { ...each, redisUs };
  };
  const outage = async () => {
    await eventually(() => cut.ask('verdicts', { count: CROWD, atOnce: CROWD }).then(() => {}), {
      withinMs: 20_000,
      what: 'verdicts by Postgres',
    });
    proxy.blackhole(true);
    try {
      const first = await cut.ask<Storm>('storm', { count: CROWD, atOnce: CROWD, everyMs: 0 });
      const later = await cut.ask<Storm>('storm', { ...STORM, count: bench.scaled(STORM.count) });
      if (first.confirmed + later.confirmed > 0) throw new Error('Postgres answered through a black hole');
      return { first, later };
    } finally {
      proxy.blackhole(false);
    }
  };
  const deciding = async (profiled: Bench['profiled']) => ({
    one: await profiled('admission:verdict', rooms, () => healthy(one)),
    crowd: await profiled('admission:verdicts', rooms, () => healthy(crowd)),
    decideOne: await decided(one),
    decideCrowd: await profiled('admission:decisions', rooms, () => decided(crowd)),
  });

  // the same work for warmth, and no profile of it
  await deciding((_run, _process, work) => work());
  const round = async () => ({ ...(await deciding(bench.profiled)), silent: await outage() });
  const taken: Awaited<ReturnType<typeof round>>[] = [];
  for (let n = 0; n < bench.rounds; n++) taken.push(await round());
  const row = (side: DoorName, title: string, unit: string, of: (values: (typeof taken)[0]) => number): Figure => ({
    title,
    unit,
    samples: { [side]: taken.map(of) },
  });
  const verdict = row.bind(undefined, 'postgres');
  const decision = row.bind(undefined, 'devices');
  const many = CROWD.toLocaleString('en');
  return [
    verdict('verdicts one by one: time of each', 'µs', ({ one }) => one.wallUs),
    verdict('verdicts one by one: CPU of the process for each', 'µs', ({ one }) => one.cpuUs),
    verdict(`${many} verdicts at once: time for each`, 'µs', ({ crowd }) => crowd.wallUs),
    verdict(`${many} verdicts at once: CPU of the process for each`, 'µs', ({ crowd }) => crowd.cpuUs),
    verdict(
      `${many} verdicts as Postgres falls silent: until the last`,
      'ms',
      ({ silent }) => silent.first.maxUs / 1000,
    ),
    verdict('while it is silent, 2,000/s: time of each, p50', 'µs', ({ silent }) => silent.later.p50Us),
    verdict(
      'while it is silent, 2,000/s: share of those that wait for it',
      '%',
      ({ silent }) => silent.later.late * 100,
    ),
    verdict('while it is silent, 2,000/s: time of the slowest', 'ms', ({ silent }) => silent.later.maxUs / 1000),
    verdict('while it is silent, 2,000/s: CPU of the process for each', 'µs', ({ silent }) => silent.later.cpuUs),
    decision('device sessions one by one: time of each decision', 'µs', ({ decideOne }) => decideOne.wallUs),
    decision('device sessions one by one: CPU of the process for each', 'µs', ({ decideOne }) => decideOne.cpuUs),
    decision('device sessions one by one: CPU of Redis for each', 'µs', ({ decideOne }) => decideOne.redisUs),
    decision(`${many} device sessions at once: time for each`, 'µs', ({ decideCrowd }) => decideCrowd.wallUs),
    decision(
      `${many} device sessions at once: CPU of the process for each`,
      'µs',
      ({ decideCrowd }) => decideCrowd.cpuUs,
    ),
    decision(`${many} device sessions at once: CPU of Redis for each`, 'µs', ({ decideCrowd }) => decideCrowd.redisUs),
  ];
}

interface Asked {
  readonly count: number;
  readonly atOnce: number;
}

interface Each {
  readonly wallUs: number;
  readonly cpuUs: number;
}

interface Storm {
  readonly cpuUs: number;
  readonly p50Us: number;
  /** Share of those that waited for Postgres. */
  readonly late: number;
  readonly maxUs: number;
  readonly confirmed: number;
}
