// node oven.js <server> [<another server>]
import { randomUUID } from 'node:crypto';
import { io } from 'socket.io-client';

const servers = process.argv.slice(2);
const socket = io(servers[0], { auth: { user: 'kitchen' } });
// with a load balancer in front, one address does that
socket.io.on('reconnect_attempt', (attempt) => {
  socket.io.uri = servers[attempt % servers.length];
});

// this process knows again what it has begun, and so a call may come to it twice
const dedupe = randomUUID();
const begun = new Map();

socket.on('connect', () => socket.emit('rpc-register', { method: 'bake', dedupe }));

socket.on('rpc-request', async ({ id, params }, answer) => {
  if (!begun.has(id)) begun.set(id, bake(params));
  answer(await begun.get(id));
});

async function bake({ cake, seconds }) {
  console.log(`in the oven: ${cake}`);
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  return `${cake} is done`;
}
