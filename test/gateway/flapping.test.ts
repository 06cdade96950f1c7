import { expect, test } from 'vitest';
import { type Client, open } from '../harness/client.js';
import { checkLedger, type Offer } from '../harness/ledger.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { ask, someone, startStack } from './fixture.js';

const RUN_MS = 12_000;
const CLIENTS = 16;
const ROOMS = ['a', 'b', 'c'];

const pick = <T>(list: readonly T[]): T => list[Math.floor(Math.random() * list.length)] as T;
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

test('clients that flap within milliseconds, between pods, in the middle of handshakes, lose and double nothing', async () => {
  await using stack = await startStack(2, { env: { HOLDFAST_GATEWAY_RING_BYTES: '65536' } });
  const clients: { client: Client; name: string }[] = [];
  for (let index = 0; index < CLIENTS; index++) {
    const client = open(stack.pod(index % 2).url, {
      token: await token({ sub: someone(), caps: ALL_CAPS }),
      reconnectionDelayMs: 10,
    });
    client.socket.io.reconnectionDelayMax(40);
    await client.connected();
    for (const room of ROOMS.slice(0, 1 + (index % 3)))
      expect(await client.subscribe(room)).toMatchObject({ ok: true });
    clients.push({ client, name: `client-${index}` });
  }

  const endsAt = Date.now() + RUN_MS;
  const offers: Offer[] = [];
  const publishing = (async () => {
    let count = 0;
    while (Date.now() < endsAt) {
      const startedAt = Date.now();
      const items = Array.from({ length: 1 + Math.floor(Math.random() * 8) }, () => ({
        room: pick(ROOMS),
        event: 'e',
        id: `event-${count++}`,
        data: 'x'.repeat(Math.floor(Math.random() * 400)),
      }));
      const { body } = await ask(pick(stack.pods), 'POST', '/v1/publish', { body: items });
      items.forEach(({ id, room }, index) => {
        const { ok, position } = body.results[index];
        const outcome = ok ? ({ kind: 'accepted', position } as const) : ({ kind: 'unknown' } as const);
        offers.push({ id, room, attempts: [{ outcome, startedAt, endedAt: Date.now() }] });
      });
      await pause(10);
    }
  })();
  const flapping = clients.map(async ({ client }) => {
    while (Date.now() < endsAt) {
      await pause(Math.random() * (Math.random() < 0.3 ? 20 : 400));
      (client.socket.io as unknown as { uri: string }).uri = pick(stack.pods).url;
      // one that is cut while its engine opens can stay in the manager's state `opening` for ever: the stock client's own fault
      if (client.socket.io.engine?.readyState === 'open') client.cut();
    }
  });
  await Promise.all([publishing, ...flapping]);

  const due = (room: string): number => offers.filter((offer) => offer.room === room).length;
  for (const { client } of clients) {
    const rooms = client.subscriptions.map(({ room }) => room);
    const wanted = rooms.reduce((sum, room) => sum + due(room), 0);
    await eventually(() => client.socket.connected && client.received.length >= wanted, {
      withinMs: 20_000,
      what: 'a client to have caught up',
    }).catch(() => {});
  }
  const ledger = checkLedger({ offers, subscribers: clients.map(({ client, name }) => client.account(name)) });
  expect(ledger.details).toEqual({ lost: [], doubled: [], outOfOrder: [], falseGaps: [], phantoms: [] });
  expect(ledger.accepted).toBe(offers.length);
  const recoveries = clients.flatMap(({ client }) => client.connects.slice(1));
  expect(recoveries.length).toBeGreaterThan(CLIENTS * 5);
  expect(recoveries.filter(({ recovered }) => !recovered)).toEqual([]);
  for (const { client } of clients) await client.stop();
  await eventually(async () => {
    for (const pod of stack.pods) expect((await pod.metrics()).get('holdfast_connections')).toBe(0);
  });
  for (const pod of stack.pods) expect(pod.logs.filter((line) => /"level":(50|60)|_failed/.test(line))).toEqual([]);
});
