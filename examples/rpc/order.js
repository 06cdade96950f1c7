// node order.js <cake> <seconds> <server> [<another server>]
import { randomUUID } from 'node:crypto';
import { io } from 'socket.io-client';

const [cake, seconds, ...servers] = process.argv.slice(2);
const socket = io(servers[0], { auth: { user: 'kitchen' } });
socket.io.on('reconnect_attempt', (attempt) => {
  socket.io.uri = servers[attempt % servers.length];
});

const call = { id: randomUUID(), method: 'bake', params: { cake, seconds: Number(seconds) } };

// after a reconnect too: with the same id it is the same call
socket.on('connect', () => {
  socket.emit('rpc-call', call, (answer) => {
    console.log(answer.ok ? answer.result : `${answer.code}: ${answer.error}`);
    socket.disconnect();
  });
});
