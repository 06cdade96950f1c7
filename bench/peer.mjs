// A stock Socket.IO server with @socket.io/redis-streams-adapter: what the relay is compared with.
// GET /emit?count=N&perSecond=R broadcasts N events of the given size to the room `news`.
import { createServer } from 'node:http';
import { createAdapter } from '@socket.io/redis-streams-adapter';
import { Redis } from 'ioredis';
import { Server } from 'socket.io';

const [redisUrl, port] = process.argv.slice(2);
const http = createServer((request, response) => {
  const url = new URL(request.url, 'http://localhost');
  if (url.pathname !== '/emit') return response.end('ok');
  void emit(
    Number(url.searchParams.get('count')),
    Number(url.searchParams.get('perSecond')),
    url.searchParams.get('data'),
  ).then(() => response.end('done'));
});
const io = new Server(http, {
  adapter: createAdapter(new Redis(redisUrl)),
  transports: ['websocket'],
  connectionStateRecovery: {},
  serveClient: false,
});
io.on('connection', (socket) => {
  socket.join('news');
  socket.emit('ready');
});
http.listen(Number(port), '127.0.0.1');

async function emit(count, perSecond, data) {
  const startedAt = performance.now();
  for (let sent = 0; sent < count; ) {
    const due = Math.min(count, ((performance.now() - startedAt) * perSecond) / 1000);
    while (sent < due) io.to('news').emit('tick', data, { room: 'news', id: `e-${sent++}`, at: Date.now() });
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
