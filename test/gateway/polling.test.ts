import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../harness/poll.js';
import { token } from '../harness/token.js';
import { type Stack, startStack } from './fixture.js';

let stack: Stack;
beforeAll(async () => {
  stack = await startStack(1, { env: { HOLDFAST_GATEWAY_POLLING: 'on' } });
});
afterAll(() => stack?.stop());

/** Bare requests: a client that polls only when it is told to. */
async function poller(url: string) {
  const base = `${url}/socket.io/?EIO=4&transport=polling`;
  const { sid } = JSON.parse((await (await fetch(base)).text()).slice(1)) as { sid: string };
  return {
    send: (packet: string) => fetch(`${base}&sid=${sid}`, { method: 'POST', body: packet }),
    poll: async () => (await fetch(`${base}&sid=${sid}`)).text(),
  };
}

test('a polling client that asks no more is gone soon after it was told to go', async () => {
  const connections = async () => (await stack.pod(0).metrics()).get('holdfast_connections');
  const client = await poller(stack.pod(0).url);
  await client.send(`40${JSON.stringify({ token: await token({ sub: 'ann', ttlSeconds: 3 }) })}`);
  expect(await client.poll()).toMatch(/^40\{"sid"/);
  expect(await connections()).toBe(1);
  // it expires; engine.io alone would keep for half a minute what nobody fetches
  await eventually(async () => (await connections()) === 0, { withinMs: 15_000, what: 'the connection to be gone' });
});
