// A process that only decides, without sockets: verdicts and device sessions by themselves. Commands come from parts/verdicts.ts.
import { randomBytes } from 'node:crypto';
import { Admission, DeviceSessions } from '../dist/admission/index.js';
import { DEFAULT_SESSION_SETTINGS } from '../dist/admission/sessions/index.js';
import { silentLogger } from '../dist/core/ports.js';
import { createMeter } from '../dist/ops/index.js';
import { Pods } from '../dist/pods/index.js';
import { Postgres } from '../dist/postgres/pool.js';
import { Keys } from '../dist/redis/keys.js';
import { answer, nowUs } from './answer.mjs';
import { gauges } from './gauges.mjs';

/** Of `holdfast serve`. */
const POOL = 4;
const NEVER_MS = 3_600_000;
/** Nobody waits that long but for Postgres. */
const LATE_US = 100_000;

const { redisUrl, databaseUrl, tenant, devices } = JSON.parse(process.argv[2]);
const processId = randomBytes(9).toString('base64url');
const logger = silentLogger;
const meter = createMeter({ version: 'bench' });
const database = new Postgres({ url: databaseUrl, name: 'bench', size: POOL });
const admission = new Admission({ database, isOpen: true, isStrict: false, revalidateMs: NEVER_MS, logger, meter });
const shared = { keys: new Keys('hf:'), processId, logger, meter };
const pods = new Pods({
  ...shared,
  url: redisUrl,
  pod: processId,
  handOvers: [(dead) => sessions.buryProcess(dead)],
  onReturn: () => sessions.returnToLife(),
  onLost: () => {},
});
const sessions = new DeviceSessions({
  ...shared,
  connection: pods.connection,
  inbox: pods.inbox,
  mayJudge: () => pods.mayJudge,
  isConnected: async () => true,
  settings: DEFAULT_SESSION_SETTINGS,
});

let next = 0;
const someDevice = () => {
  const n = next++ % devices;
  return { tenant, user: `user-${n}`, device: `device-${n}` };
};

/** What a connect asks, and how long it waited. `undefined`: Postgres didn't say. */
async function verdict() {
  const askedAt = performance.now();
  const admitted = admission.enter(someDevice(), () => {});
  const isPaired = await admission.check(admitted, new AbortController().signal);
  const waitedUs = (performance.now() - askedAt) * 1000;
  admission.leave(admitted);
  return { isPaired, waitedUs };
}

async function decision() {
  const device = someDevice();
  const holder = {
    id: `${processId}.${randomBytes(9).toString('base64url')}`,
    isAlive: async () => true,
    evict: () => {},
  };
  const { is, how } = await sessions.decide(device, holder, { isPaired: true });
  if (is !== 'admitted' || how !== 'admit') throw new Error(`${device.device}: ${is} ${how}`);
  return () => sessions.leave(device, holder);
}

/** `count` by so many asked at once; µs of time and of this process's CPU for each. */
async function timed(count, atOnce, ask) {
  const answers = [];
  const cpuFrom = gauges.cpu();
  const startedAt = nowUs();
  while (answers.length < count) answers.push(...(await Promise.all(Array.from({ length: atOnce }, ask))));
  return {
    answers,
    wallUs: (nowUs() - startedAt) / answers.length,
    cpuUs: (gauges.cpu() - cpuFrom) / answers.length,
  };
}

answer({
  ...gauges,

  async listen() {
    await pods.start();
    await sessions.start();
    await admission.start();
  },

  /** All of them by Postgres, or this throws. */
  async verdicts({ count, atOnce }) {
    const { answers, ...each } = await timed(count, atOnce, verdict);
    const unknown = answers.filter(({ isPaired }) => isPaired === undefined).length;
    if (unknown > 0) throw new Error(`${unknown} of ${answers.length} verdicts were unknown`);
    return each;
  },

  /** Postgres is silent: `atOnce` are asked every so often. How long they waited, and how many were confirmed all the same. */
  async storm({ count, atOnce, everyMs }) {
    const asked = [];
    const cpuFrom = gauges.cpu();
    while (asked.length < count) {
      asked.push(...Array.from({ length: atOnce }, verdict));
      await new Promise((resolve) => setTimeout(resolve, everyMs));
    }
    const answers = await Promise.all(asked);
    const waitedUs = Float64Array.from(answers, ({ waitedUs }) => waitedUs).sort();
    return {
      cpuUs: (gauges.cpu() - cpuFrom) / answers.length,
      p50Us: waitedUs[waitedUs.length >> 1],
      late: waitedUs.filter((us) => us > LATE_US).length / waitedUs.length,
      maxUs: waitedUs.at(-1),
      confirmed: answers.filter(({ isPaired }) => isPaired !== undefined).length,
    };
  },

  /** Of devices that nobody holds, by Redis, or this throws. They are given up again outside of the time. */
  async decisions({ count, atOnce }) {
    const { answers, ...each } = await timed(count, atOnce, decision);
    for (const leave of answers) leave();
    // behind all of them on the same connection
    await pods.connection.redis.ping();
    return each;
  },
});
