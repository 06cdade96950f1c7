// A stock Socket.IO server with the built adapter, in a process that tests kill.
import { createServer } from 'node:http';
import { Redis } from 'ioredis';
import { Server } from 'socket.io';
import { createAdapter } from '../../dist/adapter/index.js';

const { PORT, REDIS_URL, STREAM, RECOVERY_MS = '60000' } = process.env;
const http = createServer();
const io = new Server(http, {
  adapter: createAdapter(new Redis(REDIS_URL, { lazyConnect: true }), { streamName: STREAM }),
  ...(RECOVERY_MS !== '0' && { connectionStateRecovery: { maxDisconnectionDuration: Number(RECOVERY_MS) } }),
});
process.on('unhandledRejection', (error) => console.log('unhandled', error));

io.on('connection', (socket) => {
  if (!socket.recovered) socket.join(socket.handshake.auth.rooms ?? []);
  socket.on('join', (room, done) => {
    socket.join(room);
    done?.();
  });
  socket.on('leave', (room, done) => {
    socket.leave(room);
    done?.();
  });
  socket.on('set', (values, done) => {
    Object.assign(socket.data, values);
    done?.();
  });
  socket.on('get', (done) => done({ data: socket.data, rooms: [...socket.rooms] }));
  socket.on('say', (room, value) => io.to(room).emit('e', value));
});
io.on('whoami', (ack) => ack(process.pid));

await io.of('/').adapter.serverCount();
http.listen(Number(PORT), '127.0.0.1', () => console.log('listening'));
