// A process with many daemons, without their sockets: what the registry alone costs. Commands come from parts/registrations.ts.
import { randomBytes } from 'node:crypto';
import { silentLogger, silentMeter } from '../dist/core/ports.js';
import { Pods } from '../dist/pods/index.js';
import { Keys } from '../dist/redis/keys.js';
import { DEFAULT_SETTINGS, Rpc } from '../dist/rpc/index.js';
import { answer, nowUs } from './answer.mjs';
import { gauges } from './gauges.mjs';

/** Daemons that register at the same time. */
const LANES = 100;

const { redisUrl } = JSON.parse(process.argv[2]);
const processId = randomBytes(9).toString('base64url');
const shared = {
  url: redisUrl,
  keys: new Keys('hf:'),
  pod: 'registry',
  processId,
  logger: silentLogger,
  meter: silentMeter,
};
const pods = new Pods({
  ...shared,
  handOvers: [(dead) => rpc.buryProcess(dead)],
  onReturn: () => void rpc.returnToLife(),
  onLost: () => {},
});
const rpc = new Rpc({ ...shared, pods, settings: DEFAULT_SETTINGS });

let made = 0;
const daemonOf = (n) => ({
  id: randomBytes(9).toString('base64url'),
  tenant: 'default',
  user: `user-${n}`,
  deliver: ({ params }, _leftMs, answer) => answer({ ok: true, result: params }),
  giveUp: () => {},
  onReplaced: () => {},
});

async function register(daemon, methods) {
  const names = Array.from({ length: methods }, (_, i) => `method-${i}`);
  const outcomes = await Promise.all(names.map((name) => rpc.register(daemon, name, daemon.id)));
  const bad = outcomes.find((outcome) => outcome !== 'registered');
  if (bad) throw new Error(`${daemon.user}: ${bad}`);
}

answer({
  ...gauges,

  async listen() {
    await pods.start();
    await rpc.start();
  },

  async register({ daemons, methods }) {
    const queue = Array.from({ length: daemons }, () => daemonOf(made++));
    const startedAt = nowUs();
    const lane = async () => {
      for (let next = queue.shift(); next; next = queue.shift()) await register(next, methods);
    };
    await Promise.all(Array.from({ length: LANES }, lane));
    return nowUs() - startedAt;
  },

  /** A call of the last daemon's last method is answered. */
  async check({ methods }) {
    const outcome = await rpc.call({
      caller: 'bench',
      tenant: 'default',
      user: `user-${made - 1}`,
      method: `method-${methods - 1}`,
      params: 1,
      id: String(made),
      timeoutMs: 5000,
      isIdempotent: false,
    });
    if (!outcome.ok) throw new Error(JSON.stringify(outcome));
  },
});
