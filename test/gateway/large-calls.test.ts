import { expect, it } from 'vitest';
import { connect } from '../harness/client.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { startStack } from './fixture.js';

const LARGE = 'x'.repeat(900_000);

it('twenty calls at once with params and results of 900 kB close neither their daemon nor their caller', async () => {
  await using stack = await startStack(2);
  const auth = { token: await token({ sub: 'ann', caps: ALL_CAPS }) };
  await using daemon = await connect(stack.pod(0).url, auth);
  await using caller = await connect(stack.pod(1).url, auth);
  const ends: unknown[] = [];
  for (const { socket } of [daemon, caller]) socket.on('disconnect', (reason) => ends.push(reason));
  let requests = 0;
  daemon.socket.on('rpc-request', ({ params }, ack) => {
    requests++;
    ack(params === 'give' ? LARGE : params.length);
  });
  await daemon.socket.emitWithAck('rpc-register', { method: 'm' });
  const given = Array.from({ length: 5 }, () => caller.socket.emitWithAck('rpc-call', { method: 'm', params: 'give' }));
  for (const answer of await Promise.all(given)) expect(answer).toEqual({ ok: true, result: LARGE });
  const taken = Array.from({ length: 15 }, () => caller.socket.emitWithAck('rpc-call', { method: 'm', params: LARGE }));
  for (const answer of await Promise.all(taken)) expect(answer).toEqual({ ok: true, result: LARGE.length });
  await eventually(() => requests === 20);
  expect(ends).toEqual([]);
}, 60_000);
