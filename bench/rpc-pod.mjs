// A stock Socket.IO server with the streams adapter, on which an app calls a daemon wherever it is connected, in one of two ways.
// Commands come from rpc-side.ts.
import { createServer } from 'node:http';
import { createAdapter } from '@socket.io/redis-streams-adapter';
import { Redis } from 'ioredis';
import { Server } from 'socket.io';
import { answer } from './answer.mjs';
import { gauges } from './gauges.mjs';

const { name, redisUrl } = JSON.parse(process.argv[2]);
const http = createServer();
const io = new Server(http, {
  adapter: createAdapter(new Redis(redisUrl)),
  transports: ['websocket'],
  serveClient: false,
});
const roomOf = (user, method) => `${user}/${method}`;

const WAYS = {
  async emitWithAck({ user, method, params, timeoutMs }) {
    const results = await io.in(roomOf(user, method)).timeout(timeoutMs).emitWithAck('rpc-request', { method, params });
    if (results.length === 0) throw new Error('no daemon');
    return results[0];
  },

  async fetchSockets({ user, method, params, timeoutMs }) {
    const [daemon] = await io.in(roomOf(user, method)).fetchSockets();
    if (!daemon) throw new Error('no daemon');
    const results = await io.to(daemon.id).timeout(timeoutMs).emitWithAck('rpc-request', { method, params });
    return results[0];
  },
};

io.on('connection', (socket) => {
  socket.on('rpc-register', ({ method }, ack) => {
    socket.join(roomOf(socket.handshake.auth.token, method));
    ack({ ok: true });
  });
  socket.on('rpc-call', async (request, ack) => {
    try {
      ack({ ok: true, result: await WAYS[name](request) });
    } catch (error) {
      ack({ ok: false, error: error.message });
    }
  });
});

answer({
  ...gauges,

  async listen() {
    await new Promise((resolve) => http.listen({ port: 0, host: '127.0.0.1', backlog: 4096 }, resolve));
    return http.address().port;
  },
});
