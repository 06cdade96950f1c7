// A process that serves and calls methods with stock BullMQ, a queue each. Commands come from parts/registrations.ts.
import { Queue, QueueEvents, Worker } from 'bullmq';
import { Redis } from 'ioredis';
import { answer } from './answer.mjs';

const { redisUrl } = JSON.parse(process.argv[2]);
// shared as far as BullMQ shares; what blocks has a connection of its own
const connection = new Redis(redisUrl, { maxRetriesPerRequest: null });
connection.setMaxListeners(0);

answer({
  async serve({ methods }) {
    for (let i = 0; i < methods; i++) {
      const name = `method-${i}`;
      const queue = new Queue(name, { connection });
      const events = new QueueEvents(name, { connection });
      const worker = new Worker(name, ({ data }) => data, { connection });
      await Promise.all([queue.waitUntilReady(), events.waitUntilReady(), worker.waitUntilReady()]);
    }
  },
});
