// Ends by itself, if nothing of a closed adapter holds the process.
import { createServer } from 'node:http';
import { Redis } from 'ioredis';
import { Server } from 'socket.io';
import { createAdapter } from '../../dist/adapter/index.js';

const { REDIS_URL, STREAM } = process.env;
const recovery = { connectionStateRecovery: {} };
const make = (url) =>
  new Server(createServer(), {
    ...recovery,
    adapter: createAdapter(new Redis(url, { lazyConnect: true }), { streamName: STREAM }),
  });
const ready = async (io) => {
  while ((await io.fetchSockets().catch(() => undefined)) === undefined) await new Promise(setImmediate);
};

const io = make(REDIS_URL);
io.of('/other');
await ready(io);
io.emit('e', 1);
io.timeout(60_000).emit('ask', () => {});
await io.close();
console.log('closed');

await make(REDIS_URL).close();
console.log('closed while starting');

await make('redis://127.0.0.1:1').close();
console.log('closed without Redis');
