// Holdfast's relay as a pod. It has no `emit`: events come over its HTTP API, here from its own process. Commands come from side.ts.
import { loadConfig } from '../dist/config.js';
import { createLogger, createMeter } from '../dist/ops/index.js';
import { Relay } from '../dist/relay.js';
import { answer, nowUs } from './answer.mjs';
import { EVENT, eventOf } from './event.mjs';
import { gauges } from './gauges.mjs';
import { pace } from './pace.mjs';
import { roomOf } from './plan.mjs';

/** Events in one request. One follows the other, since only what one connection publishes is in its order. */
const MAX_BATCH = 100;

const { env, apiKey } = JSON.parse(process.argv[2]);
const { config } = loadConfig(env);
const meter = createMeter({ version: 'bench' });
const relay = new Relay({
  config,
  redisUrl: config.redisUrl,
  isEmbedded: false,
  logger: createLogger({ level: 'warn', bufferBytes: config.logBufferBytes, base: {} }),
  meter,
  onFatal: (message) => {
    throw new Error(message);
  },
});

async function post(events) {
  const response = await fetch(`http://127.0.0.1:${config.port}/v1/publish`, {
    method: 'POST',
    headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' },
    body: JSON.stringify(events),
  });
  if (!response.ok) throw new Error(`publish: ${response.status} ${await response.text()}`);
  await response.arrayBuffer();
}

answer({
  ...gauges,

  async listen() {
    await relay.start();
    return config.port;
  },

  async publish({ plan, perSecond }) {
    const waiting = [];
    let posting;
    const postAll = async () => {
      while (waiting.length > 0) await post(waiting.splice(0, MAX_BATCH));
      posting = undefined;
    };
    const started = await pace(plan.count, perSecond, async (from, to) => {
      for (let k = from; k < to; k++) waiting.push({ room: roomOf(plan, k), event: EVENT, data: eventOf(k, nowUs()) });
      posting ??= postAll();
      if (waiting.length > MAX_BATCH) await posting;
    });
    await posting;
    return started;
  },

  sockets: async () => Number(/^holdfast_connections(?:{.*})? (\d+)/m.exec(await meter.text())[1]),

  metrics: () => meter.text(),
});
