// A back end that reads a topic as a group, by one library or another. Commands come from group-side.ts.
import { Redis } from 'ioredis';
import { answer } from './answer.mjs';

const { name, redisUrl, topic } = JSON.parse(process.argv[2]);
const stream = `hf:{${topic}.0}:s`;
const COUNT = 100;
/** As many jobs as BullMQ's worker may have at work; ours and the loop by hand need fewer. */
const CONCURRENCY = 64;

/** What every handler does: looks at what was sent. */
let handled = 0;
let sum = 0;
function handle(data) {
  sum += data.n;
  handled++;
}

const handleAll = (entries) => {
  for (const { data } of entries) handle(data);
};

const LIBRARIES = {
  async holdfast() {
    const { createLog } = await import('../dist/backend-log/index.js');
    const log = createLog(redisUrl, { topic });
    const ways = {
      each: [(entry) => handle(entry.data), {}],
      batch: [handleAll, { batch: COUNT }],
      ordered: [(entry) => handle(entry.data), { orderedBy: 'tenant' }],
    };
    return async (group, way) => {
      const member = log.group(group, { from: 'earliest' }).run(...ways[way]);
      await member.ready;
      return () => member.stop();
    };
  },

  /** The least that one would write: it loses what a crash leaves pending, and knows of no failure. */
  async byHand() {
    return async (group) => {
      const redis = new Redis(redisUrl);
      // whoever is first makes it
      await redis.xgroup('CREATE', stream, group, '0', 'MKSTREAM').catch(() => {});
      let isOver = false;
      const read = async () => {
        while (!isOver) {
          const from = ['COUNT', COUNT, 'BLOCK', 100, 'STREAMS', stream, '>'];
          const reply = await redis.xreadgroup('GROUP', group, `${process.pid}`, ...from);
          if (!reply) continue;
          const ids = [];
          for (const [id, [, body]] of reply[0][1]) {
            handle(JSON.parse(body.slice(body.indexOf('\n') + 1))[1]);
            ids.push(id);
          }
          await redis.xack(stream, group, ...ids);
        }
        redis.disconnect();
      };
      const reading = read();
      return () => {
        isOver = true;
        return reading;
      };
    };
  },

  async bullmq() {
    const { Worker } = await import('bullmq');
    return async () => {
      const options = { connection: { url: redisUrl }, concurrency: CONCURRENCY };
      const worker = new Worker(topic, async ({ data }) => handle(data), options);
      await worker.waitUntilReady();
      return () => worker.close();
    };
  },
};

const join = await LIBRARIES[name]();
let leave;

answer({
  async join({ group, way }) {
    leave = await join(group, way);
  },
  /** A member of each of so many groups. */
  async joinMany({ count }) {
    const leaves = await Promise.all(Array.from({ length: count }, (_, n) => join(`group-${n}`, 'each')));
    leave = () => Promise.all(leaves.map((end) => end()));
  },
  leave: () => leave(),
  handled: () => ({ handled, sum }),
});
