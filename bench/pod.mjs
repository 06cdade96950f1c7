// A stock Socket.IO server with one of the adapters. Pod A has the sockets, pod B publishes. Commands come from side.ts.
import { createServer } from 'node:http';
import { Redis } from 'ioredis';
import { Server } from 'socket.io';
import { answer, nowUs } from './answer.mjs';
import { EVENT, eventOf } from './event.mjs';
import { gauges } from './gauges.mjs';
import { pace } from './pace.mjs';
import { roomOf } from './plan.mjs';

const ADAPTERS = {
  async holdfast(redis, options) {
    const { createAdapter } = await import('../dist/adapter/index.js');
    return createAdapter(redis, options);
  },
  async streams(redis) {
    const { createAdapter } = await import('@socket.io/redis-streams-adapter');
    return createAdapter(redis);
  },
  async pubsub(redis) {
    const { createAdapter } = await import('@socket.io/redis-adapter');
    return createAdapter(redis, redis.duplicate());
  },
};

/** Of a connection that is under way or silent: a pod whose adapter restores a thousand sessions needs more than the defaults. */
const PATIENCE_MS = 300_000;

const { name, redisUrl, options } = JSON.parse(process.argv[2]);
const http = createServer();
const io = new Server(http, {
  adapter: await ADAPTERS[name](new Redis(redisUrl), options),
  transports: ['websocket'],
  connectionStateRecovery: {},
  connectTimeout: PATIENCE_MS,
  pingTimeout: PATIENCE_MS,
  serveClient: false,
});
io.on('connection', (socket) => {
  if (!socket.recovered) socket.join(socket.handshake.auth.rooms);
});

answer({
  ...gauges,

  async listen() {
    // thousands come at once, and a connection that the kernel drops is tried again only a second later
    await new Promise((resolve) => http.listen({ port: 0, host: '127.0.0.1', backlog: 4096 }, resolve));
    return http.address().port;
  },

  publish: ({ plan, perSecond }) =>
    pace(plan.count, perSecond, (from, to) => {
      for (let k = from; k < to; k++) io.to(roomOf(plan, k)).emit(EVENT, eventOf(k, nowUs()));
    }),

  sockets: () => io.of('/').sockets.size,
});
