// A stock Socket.IO server with the streams adapter (KIND=old) or ours on a bridge to it (KIND=new). POST /<operation> makes it act.
import { createServer } from 'node:http';
import { createAdapter as createStreamsAdapter } from '@socket.io/redis-streams-adapter';
import { Redis } from 'ioredis';
import { Server } from 'socket.io';
import { createAdapter } from '../../dist/adapter/index.js';

const { PORT, REDIS_URL, KIND, NAME, STREAM, BRIDGED = '1', COUNT = '1', PARTITIONS = '1', PREFIX = '' } = process.env;
process.on('unhandledRejection', (error) => console.log('unhandled', error));

// as in an application that sets nothing: the streams adapter's names are the bridge's defaults
const old = STREAM === 'socket.io' ? {} : { streamName: STREAM, channelPrefix: STREAM };
const streamCount = Number(COUNT);
const bridge = STREAM === 'socket.io' && streamCount === 1 ? 'socket.io' : { ...old, streamCount };
const redis = new Redis(REDIS_URL, { keyPrefix: PREFIX });
const say = ({ event }) => console.log(event);
const logger = { debug: say, info: say, warn: say, error: say };
const adapter =
  KIND === 'old'
    ? createStreamsAdapter(redis, { ...old, streamCount, blockTimeInMs: 200 })
    : createAdapter(redis, {
        streamName: NAME,
        streamCount: Number(PARTITIONS),
        logger,
        ...(BRIDGED === '1' && { bridge }),
      });

const http = createServer(async (request, response) => {
  let body = '';
  for await (const chunk of request) body += chunk;
  const answer = (status, value) => {
    response.statusCode = status;
    response.end(JSON.stringify(value ?? null));
  };
  operations[request.url.slice(1)](JSON.parse(body || '{}')).then(
    (value) => answer(200, value),
    (error) => answer(500, error.message),
  );
});
const io = new Server(http, { adapter, connectionStateRecovery: { maxDisconnectionDuration: 60_000 } });
for (const namespace of ['/', '/other', '/elsewhere']) {
  io.of(namespace).on('connection', (socket) => {
    socket.join(socket.handshake.auth.rooms ?? []);
    socket.data.name = socket.handshake.auth.name;
  });
  io.of(namespace).on('question', (value, done) => (done ? done(`${KIND} ${value}`) : heard.push(value)));
}

const heard = [];
let isFlooding = false;
const to = ({ namespace = '/', rooms = [], except = [] }) => io.of(namespace).to(rooms).except(except);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const operations = {
  async emit(at) {
    const value = at.binary === undefined ? at.value : { deep: [Buffer.from(at.binary), at.value] };
    (at.volatile ? to(at).volatile : to(at)).emit('e', value);
  },
  /** `<name>-1` … , one every `everyMs` or so. */
  async traffic({ name, count, everyMs, ...at }) {
    for (let i = 1; i <= count; i++) {
      to(at).emit('e', `${name}-${i}`);
      await sleep(everyMs);
    }
  },
  /** About `perMs` each ms to a room that nobody is in, until `unflood`: whatever reads the log never finds its end. */
  async flood({ perMs }) {
    isFlooding = true;
    let made = 0;
    const startedAt = performance.now();
    const pour = () => {
      for (const due = (performance.now() - startedAt) * perMs; made < due; made++) io.to('nobody').emit('e', made);
      if (isFlooding) setTimeout(pour, 1);
    };
    pour();
  },
  unflood: async () => {
    isFlooding = false;
  },
  join: async (at) => to(at).socketsJoin(at.join),
  leave: async (at) => to(at).socketsLeave(at.leave),
  disconnect: async (at) => to(at).disconnectSockets(at.close),
  fetch: async (at) => (await to(at).fetchSockets()).map(({ data, rooms }) => ({ name: data.name, rooms: [...rooms] })),
  ask: async ({ namespace = '/', value }) => io.of(namespace).serverSideEmitWithAck('question', value),
  tell: async ({ namespace = '/', value }) => void io.of(namespace).serverSideEmit('question', value),
  heard: async () => heard,
  acks: async ({ timeoutMs, ...at }) =>
    to(at)
      .timeout(timeoutMs)
      .emitWithAck('ack', at.value, Buffer.from([7])),
  servers: async ({ namespace = '/' }) => io.of(namespace).adapter.serverCount(),
  /** Nothing else keeps the process. */
  async close() {
    setImmediate(async () => {
      await io.close();
      redis.disconnect();
      http.closeAllConnections();
    });
  },
};

await io.of('/').adapter.serverCount();
http.listen(Number(PORT), '127.0.0.1', () => console.log('listening'));
