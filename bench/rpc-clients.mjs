// Stock clients: callers, or the daemon that serves them. Both speak the relay's protocol, to whichever pod. Commands come from rpc-side.ts.
import { once } from 'node:events';
import { io } from 'socket.io-client';
import { answer } from './answer.mjs';
import { gauges } from './gauges.mjs';
import { callAll } from './rpc-plan.mjs';

const TIMEOUT_MS = 10_000;
const METHOD = 'work';

let sockets = [];
let executions = 0;

async function connect({ port, token }) {
  const socket = io(`http://127.0.0.1:${port}`, { transports: ['websocket'], forceNew: true, auth: { token } });
  await Promise.race([once(socket, 'connect'), once(socket, 'connect_error').then(([error]) => Promise.reject(error))]);
  return socket;
}

answer({
  ...gauges,

  async open({ count, ...address }) {
    sockets = await Promise.all(Array.from({ length: count }, () => connect(address)));
  },

  async serve(address) {
    const socket = await connect(address);
    socket.on('rpc-request', ({ params }, ack) => {
      executions++;
      ack(params);
    });
    const ack = await socket.timeout(TIMEOUT_MS).emitWithAck('rpc-register', { method: METHOD });
    if (!ack.ok) throw new Error(`rpc-register: ${JSON.stringify(ack)}`);
  },

  call: ({ user, ...wanted }) =>
    callAll(wanted, async (caller, params) => {
      const ack = await sockets[caller]
        .timeout(TIMEOUT_MS)
        .emitWithAck('rpc-call', { user, method: METHOD, params, timeoutMs: TIMEOUT_MS });
      if (!ack.ok) throw new Error(`rpc-call: ${JSON.stringify(ack)}`);
      return ack.result;
    }),

  executions: () => executions,
});
