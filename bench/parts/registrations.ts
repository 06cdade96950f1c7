import { Redis } from 'ioredis';
import { cpuSeconds } from '../../test/harness/cpu.js';
import { eventually } from '../../test/harness/poll.js';
import { startRedis } from '../../test/harness/redis.js';
import type { Bench, Figure } from '../figures.js';
import { Worker } from '../worker.js';

const DAEMONS = 10_000;
const METHODS = 10;
const IDLE_MS = 10_000;
const LOOK_MS = 1000;
const FEW_METHODS = 100;
const MANY_METHODS = 10_000;
/** Of one daemon; the relay lets a socket serve that many. */
const MOST_METHODS = 1000;

/** What it costs that somebody serves a method, as long as nobody calls it. */
export async function registrations(bench: Bench): Promise<Figure[]> {
  const taken: Registered[] = [];
  for (let round = 0; round < bench.rounds; round++) taken.push(await register(bench, bench.scaled(DAEMONS)));
  const title = `${bench.scaled(DAEMONS).toLocaleString('en')} daemons × ${METHODS} methods`;
  const figure = (name: keyof Registered, about: string, unit: string): Figure => ({
    title: `${title}: ${about}`,
    unit,
    samples: { holdfast: taken.map((values) => values[name]) },
  });
  const figures = [
    figure('wallUs', 'time per registration', 'µs'),
    figure('podUs', 'CPU of the pod per registration', 'µs'),
    figure('redisUs', 'CPU of Redis per registration', 'µs'),
    figure('podBytes', 'memory of the pod per registration', 'bytes'),
    figure('redisBytes', 'memory of Redis per registration', 'bytes'),
    figure('idlePod', 'CPU of the idle pod', '% of a core'),
    figure('idleRedis', 'CPU of Redis meanwhile', '% of a core'),
    figure('idleCommands', 'commands in Redis meanwhile, those of scripts too', 'commands/s'),
  ];
  return [...figures, ...(await connections(bench))];
}

interface Registered {
  readonly wallUs: number;
  readonly podUs: number;
  readonly redisUs: number;
  readonly podBytes: number;
  readonly redisBytes: number;
  readonly idlePod: number;
  readonly idleRedis: number;
  readonly idleCommands: number;
}

async function register(bench: Bench, daemons: number): Promise<Registered> {
  await using server = await startRedis({ aof: 'off' });
  await using pod = registry(server.url);
  using redis = connectTo(server.url);
  await pod.ask('listen');
  // a script's and a function's first use isn't what the ten-thousandth costs
  await pod.ask('register', { daemons: Math.ceil(daemons / 10), methods: METHODS });
  const state = async () => ({
    podBytes: await pod.ask<number>('memory'),
    redisBytes: await info(redis, 'memory', 'used_memory'),
    podS: await cpuSeconds(pod.pid),
    redisS: await cpuSeconds(server.pid),
  });
  const before = await state();
  const wallUs = await bench.profiled('rpc:registrations', pod, () =>
    pod.ask<number>('register', { daemons, methods: METHODS }),
  );
  const cpu = { podS: await cpuSeconds(pod.pid), redisS: await cpuSeconds(server.pid) };
  const after = await state();
  await pod.ask('check', { methods: METHODS });
  const count = daemons * METHODS;

  const idle = async () => ({
    podS: await cpuSeconds(pod.pid),
    redisS: await cpuSeconds(server.pid),
    commands: await info(redis, 'stats', 'total_commands_processed'),
  });
  const idleFrom = await idle();
  await new Promise((resolve) => setTimeout(resolve, IDLE_MS));
  const idleTo = await idle();
  const perSecond = (name: keyof typeof idleFrom): number => (idleTo[name] - idleFrom[name]) / (IDLE_MS / 1000);
  return {
    wallUs: wallUs / count,
    podUs: ((cpu.podS - before.podS) / count) * 1e6,
    redisUs: ((cpu.redisS - before.redisS) / count) * 1e6,
    podBytes: (after.podBytes - before.podBytes) / count,
    redisBytes: (after.redisBytes - before.redisBytes) / count,
    idlePod: perSecond('podS') * 100,
    idleRedis: perSecond('redisS') * 100,
    idleCommands: perSecond('commands'),
  };
}

/** Connections to Redis of one process that serves and calls some methods: ours must not grow with them. */
async function connections(bench: Bench): Promise<Figure[]> {
  const ours = async (methods: number): Promise<number> => {
    await using server = await startRedis({ aof: 'off' });
    await using pod = registry(server.url);
    await pod.ask('listen');
    const each = Math.min(methods, MOST_METHODS);
    await pod.ask('register', { daemons: methods / each, methods: each });
    await pod.ask('check', { methods: each });
    return await countClients(server.url);
  };
  const stock = async (methods: number): Promise<number> => {
    await using server = await startRedis({ aof: 'off' });
    await using process = new Worker('bullmq', 'rpc-queues.mjs', [JSON.stringify({ redisUrl: server.url })]);
    await process.ask('serve', { methods });
    return await countClients(server.url);
  };
  const withStock = bench.callSides.includes('bullmq');
  const one = await ours(1);
  const row = async (methods: number, samples: Figure['samples']): Promise<Figure> => ({
    title: `connections to Redis of a process, ${methods.toLocaleString('en')} ${methods === 1 ? 'method' : 'methods'}`,
    unit: 'connections',
    peer: 'bullmq',
    aim: { limit: one },
    samples,
  });
  return [
    await row(1, { holdfast: [one], ...(withStock && { bullmq: [await stock(1)] }) }),
    await row(FEW_METHODS, {
      holdfast: [await ours(FEW_METHODS)],
      ...(withStock && { bullmq: [await stock(FEW_METHODS)] }),
    }),
    await row(MANY_METHODS, { holdfast: [await ours(MANY_METHODS)] }),
  ];
}

function registry(redisUrl: string): Worker {
  return new Worker('holdfast, registry', 'rpc-registry.mjs', [JSON.stringify({ redisUrl })], ['--expose-gc']);
}

function connectTo(url: string): Redis & Disposable {
  const redis = new Redis(url);
  return Object.assign(redis, { [Symbol.dispose]: () => redis.disconnect() });
}

async function info(redis: Redis, section: string, field: string): Promise<number> {
  const text = await redis.info(section);
  return Number(new RegExp(`^${field}:(\\d+)`, 'm').exec(text)?.[1]);
}

/** Beside the one that asks; of a process that has opened all that it opens, so that two looks find the same. */
async function countClients(url: string): Promise<number> {
  using redis = connectTo(url);
  const look = async (): Promise<number> =>
    String(await redis.client('LIST'))
      .trim()
      .split('\n').length - 1;
  let last = -1;
  await eventually(
    async () => {
      const before = last;
      last = await look();
      if (last !== before) await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
      return last === before;
    },
    { withinMs: 20_000, what: 'the number of connections to be settled' },
  );
  return last;
}
