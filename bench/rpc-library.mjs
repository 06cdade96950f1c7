// A back end that calls another one, or that other one, without a socket or relay between them. Commands come from rpc-side.ts.
import { Redis } from 'ioredis';
import { answer } from './answer.mjs';
import { gauges } from './gauges.mjs';
import { callAll } from './rpc-plan.mjs';

const TIMEOUT_MS = 10_000;
const USER = 'service';
const METHOD = 'work';
/** As many requests as a daemon's socket may have in flight. */
const CONCURRENCY = 64;

const { name, redisUrl } = JSON.parse(process.argv[2]);
let executions = 0;
let call;

const LIBRARIES = {
  async holdfast() {
    const { createRpcClient, createRpcWorker } = await import('../dist/attach/index.js');
    // only says where Redis is
    const redis = new Redis(redisUrl, { lazyConnect: true });
    return {
      open() {
        const client = createRpcClient(redis);
        return (params) => client.call(USER, METHOD, params, { timeoutMs: TIMEOUT_MS });
      },
      serve: (handler) => createRpcWorker(redis, { user: USER, methods: { [METHOD]: handler } }),
    };
  },

  async bullmq() {
    const { Queue, QueueEvents, Worker } = await import('bullmq');
    const connection = { url: redisUrl };
    const queueName = `${USER}-${METHOD}`;
    // as long as ours; without it each is kept for ever, and with `true` waitUntilFinished may find none
    const options = { removeOnComplete: { age: 60 } };
    return {
      async open() {
        const queue = new Queue(queueName, { connection });
        const events = new QueueEvents(queueName, { connection });
        await events.waitUntilReady();
        // each waiting call listens to both
        queue.setMaxListeners(0);
        events.setMaxListeners(0);
        return async (params) => (await queue.add(METHOD, params, options)).waitUntilFinished(events, TIMEOUT_MS);
      },
      serve: (handler) =>
        new Worker(queueName, ({ data }) => handler(data), { connection, concurrency: CONCURRENCY }).waitUntilReady(),
    };
  },
};

const library = await LIBRARIES[name]();

answer({
  ...gauges,

  async open() {
    call = await library.open();
  },

  async serve() {
    await library.serve(async (params) => {
      executions++;
      return params;
    });
  },

  call: (wanted) => callAll(wanted, (_, params) => call(params)),

  executions: () => executions,
});
