// The least that a pod on Node can do for an event, without any promise: B appends it to a stream, A reads the stream and writes
// what one read brought to each socket at once. No rooms, positions, recovery or limits. Commands come from side.ts.
import { createServer } from 'node:net';
import { Redis } from 'ioredis';
import { answer, nowUs } from './answer.mjs';
import { EVENT, eventOf } from './event.mjs';
import { gauges } from './gauges.mjs';
import { pace } from './pace.mjs';

const STREAM = 'floor';
const READ_COUNT = 1000;

const { redisUrl } = JSON.parse(process.argv[2]);
const redis = new Redis(redisUrl);
const sockets = new Set();

/** A text frame of WebSocket below 64 kB. */
function frame(text) {
  const body = Buffer.from(text);
  const head = Buffer.from(body.length < 126 ? [0x81, body.length] : [0x81, 126, body.length >> 8, body.length & 255]);
  return Buffer.concat([head, body]);
}

const server = createServer({ noDelay: true }, (socket) => {
  socket.on('error', () => {});
  socket.on('close', () => sockets.delete(socket));
  // what a client says first is its upgrade, then CONNECT
  socket.once('data', () => {
    socket.write(Buffer.concat([Buffer.from('HTTP/1.1 101 Switching Protocols\r\n\r\n'), frame('0{}')]));
    socket.once('data', () => {
      sockets.add(socket);
      socket.write(frame('40{"sid":"-"}'));
      socket.resume();
    });
  });
});

async function deliver() {
  const reader = redis.duplicate();
  for (let last = '$'; ; ) {
    const answered = await reader.xread('COUNT', READ_COUNT, 'BLOCK', 5000, 'STREAMS', STREAM, last);
    if (!answered) continue;
    const entries = answered[0][1];
    last = entries.at(-1)[0];
    const frames = Buffer.concat(entries.map(([, [, text]]) => frame(text)));
    for (const socket of sockets) socket.write(frames);
  }
}

answer({
  ...gauges,

  async listen() {
    void deliver();
    await new Promise((resolve) => server.listen({ port: 0, host: '127.0.0.1', backlog: 4096 }, resolve));
    return server.address().port;
  },

  publish: ({ plan, perSecond }) =>
    pace(plan.count, perSecond, (from, to) => {
      for (let k = from; k < to; k++) {
        const text = `42${JSON.stringify([EVENT, eventOf(k, nowUs())])}`;
        void redis.xadd(STREAM, 'MAXLEN', '~', 10_000, '*', 'text', text);
      }
    }),

  sockets: () => sockets.size,
});
