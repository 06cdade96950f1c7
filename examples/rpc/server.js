import { createServer } from 'node:http';
import { attachRpc } from 'holdfast/rpc';
import { Redis } from 'ioredis';
import { Server } from 'socket.io';

const { PORT = '3000', REDIS_URL = 'redis://127.0.0.1:6379' } = process.env;

const http = createServer();
const io = new Server(http);

attachRpc(io, new Redis(REDIS_URL), {
  // whatever proves here who somebody is: a cookie, a token
  identify: ({ handshake }) => ({ user: handshake.auth.user }),
});

http.listen(Number(PORT), () => console.log(`http://127.0.0.1:${PORT}`));
