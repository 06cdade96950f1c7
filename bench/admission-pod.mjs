// A stock Socket.IO server without any adapter that takes whoever has a token. Commands come from admission-side.ts.
import { createServer } from 'node:http';
import { jwtVerify } from 'jose';
import { Server } from 'socket.io';
import { answer } from './answer.mjs';
import { gauges } from './gauges.mjs';

const { secret } = JSON.parse(process.argv[2]);
const key = new TextEncoder().encode(secret);
const http = createServer();
const io = new Server(http, { transports: ['websocket'], serveClient: false });

io.use((socket, next) => {
  jwtVerify(socket.handshake.auth.token, key, { algorithms: ['HS256'], requiredClaims: ['sub', 'exp'] }).then(
    ({ payload }) => {
      socket.data.claims = payload;
      next();
    },
    next,
  );
});
// the rooms that somebody has of his own at the relay
io.on('connection', (socket) => {
  const { sub, tenant, device } = socket.data.claims;
  socket.join([`user:${sub}`, `tenant:${tenant}`, ...(device ? [`device:${sub}/${device}`] : [])]);
});

answer({
  ...gauges,

  async listen() {
    await new Promise((resolve) => http.listen({ port: 0, host: '127.0.0.1', backlog: 4096 }, resolve));
    return http.address().port;
  },

  sockets: () => io.of('/').sockets.size,
});
