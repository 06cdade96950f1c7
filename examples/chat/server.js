import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createAdapter } from 'holdfast/adapter';
import { Redis } from 'ioredis';
import { Server } from 'socket.io';

const { PORT = '3000', REDIS_URL = 'redis://127.0.0.1:6379' } = process.env;

const page = readFileSync(new URL('index.html', import.meta.url));
const http = createServer((_request, response) => response.setHeader('content-type', 'text/html').end(page));
const io = new Server(http, {
  adapter: createAdapter(new Redis(REDIS_URL)),
  connectionStateRecovery: { maxDisconnectionDuration: 120_000 },
});

const namesIn = async (room) => (await io.in(room).fetchSockets()).map((socket) => socket.data.name).sort();

io.on('connection', (socket) => {
  // the room and the name of one that comes back are still there
  socket.on('enter', async ({ room, name }, done) => {
    socket.data.name = name;
    socket.data.room = room;
    await socket.join(room);
    socket.to(room).emit('entered', { name });
    done(await namesIn(room));
  });

  socket.on('say', (text) => {
    const { name, room } = socket.data;
    if (room) io.to(room).emit('said', { name, text });
  });

  socket.on('disconnect', () => {
    const { name, room } = socket.data;
    if (room) io.to(room).emit('left', { name });
  });
});

http.listen(Number(PORT), () => console.log(`http://127.0.0.1:${PORT}`));
