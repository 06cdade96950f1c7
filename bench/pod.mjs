// A stock Socket.IO server with one of the adapters. Pod A has the sockets, pod B publishes. Commands come from side.ts.
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { Session } from 'node:inspector/promises';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { setImmediate, setTimeout } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { Server } from 'socket.io';
import { answer, nowUs } from './answer.mjs';
import { EVENT, eventOf } from './event.mjs';
import { roomOf } from './plan.mjs';

/** What a publisher in a hurry emits before its own event loop has its turn. */
const BURST_SLICE = 100;

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

const { adapter, redisUrl, options } = JSON.parse(process.argv[2]);
const http = createServer();
const io = new Server(http, {
  adapter: await ADAPTERS[adapter](new Redis(redisUrl), options),
  transports: ['websocket'],
  connectionStateRecovery: {},
  serveClient: false,
});
io.on('connection', (socket) => {
  if (!socket.recovered) socket.join(socket.handshake.auth.rooms);
});

const profiler = new Session();
const loopDelay = monitorEventLoopDelay({ resolution: 5 });

answer({
  async listen() {
    // thousands come at once, and a connection that the kernel drops is tried again only a second later
    await new Promise((resolve) => http.listen({ port: 0, host: '127.0.0.1', backlog: 4096 }, resolve));
    return http.address().port;
  },

  async publish({ plan, perSecond }) {
    const startedAt = nowUs();
    for (let sent = 0; sent < plan.count; ) {
      const elapsed = (nowUs() - startedAt) / 1e6;
      const due = Math.min(plan.count, perSecond === Infinity ? sent + BURST_SLICE : Math.ceil(elapsed * perSecond));
      for (; sent < due; sent++) io.to(roomOf(plan, sent)).emit(EVENT, eventOf(sent, nowUs()));
      if (perSecond === Infinity) await setImmediate();
      else await setTimeout(Math.max(1, (sent / perSecond - elapsed) * 1000));
    }
    return { startedAt };
  },

  sockets: () => io.of('/').sockets.size,

  /** µs of user and system time since the start. */
  cpu() {
    const { user, system } = process.cpuUsage();
    return user + system;
  },

  /** Bytes in use once the garbage is gone. */
  memory() {
    globalThis.gc();
    globalThis.gc();
    const { heapUsed, external, rss } = process.memoryUsage();
    return { used: heapUsed + external, rss };
  },

  /** From here on `strain` counts. */
  watch() {
    // 5 resets the highest RSS of /proc/self/status
    writeFileSync('/proc/self/clear_refs', '5');
    loopDelay.reset();
    loopDelay.enable();
  },

  /** The longest time that the event loop was blocked, in ms, and the highest RSS, in bytes, since `watch`. */
  strain() {
    loopDelay.disable();
    const kib = Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))[1]);
    return { blockedMs: loopDelay.max / 1e6, peakRss: kib * 1024 };
  },

  async profile() {
    profiler.connect();
    await profiler.post('Profiler.enable');
    await profiler.post('Profiler.start');
  },

  async profiled() {
    const { profile } = await profiler.post('Profiler.stop');
    profiler.disconnect();
    return profile;
  },
});
