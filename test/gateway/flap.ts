import { expect } from 'vitest';
import { type Client, open } from '../harness/client.js';
import { checkLedger, type Offer } from '../harness/ledger.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { ask, type Stack, someone, startStack } from './fixture.js';

const UNKNOWN = { kind: 'unknown' } as const;
const CLIENTS = 16;
const ROOMS = ['a', 'b', 'c'];

const pick = <T>(list: readonly T[]): T => list[Math.floor(Math.random() * list.length)] as T;
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** Returns of all clients together without which a run shows little. */
const RETURNS = CLIENTS * 5;
/** Of a machine so busy that clients hardly come back. */
const MOST_MS = 30_000;

export interface FlapOptions {
  /** At least: it goes on until clients have come back often enough. */
  readonly runMs: number;
  /** Besides the clients' own: runs until the time is over. */
  readonly faults?: (stack: Stack, isOver: () => boolean) => Promise<void>;
}

/**
 * Clients cut their connections at random and come back on a random pod, while events are published one call after another.
 * Fails unless each client got each event of its rooms once, in order, and every return was a recovery.
 */
export async function flap({ runMs, faults = async () => {} }: FlapOptions): Promise<void> {
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

  const startedAt = Date.now();
  const returns = (): number => clients.reduce((sum, { client }) => sum + client.connects.length - 1, 0);
  const isOver = (): boolean => {
    const ranMs = Date.now() - startedAt;
    return ranMs >= runMs && (returns() > RETURNS || ranMs >= runMs + MOST_MS);
  };
  const offers: Offer[] = [];
  const publishing = (async () => {
    let count = 0;
    while (!isOver()) {
      const startedAt = Date.now();
      const items = Array.from({ length: 1 + Math.floor(Math.random() * 8) }, () => ({
        room: pick(ROOMS),
        event: 'e',
        id: `event-${count++}`,
        data: 'x'.repeat(Math.floor(Math.random() * 400)),
      }));
      // no answer leaves the outcome unknown
      const answer = await ask(pick(stack.pods), 'POST', '/v1/publish', { body: items }).catch(() => undefined);
      items.forEach(({ id, room }, index) => {
        const result = answer?.body.results?.[index];
        const outcome = result?.ok ? ({ kind: 'accepted', position: result.position } as const) : UNKNOWN;
        offers.push({ id, room, attempts: [{ outcome, startedAt, endedAt: Date.now() }] });
      });
      await pause(10);
    }
  })();
  const flapping = clients.map(async ({ client }) => {
    while (!isOver()) {
      await pause(Math.random() * (Math.random() < 0.3 ? 20 : 400));
      (client.socket.io as unknown as { uri: string }).uri = pick(stack.pods).url;
      // one that is cut while its engine opens can stay in the manager's state `opening` for ever: the stock client's own fault
      if (client.socket.io.engine?.readyState === 'open') client.cut();
    }
  });
  await Promise.all([publishing, faults(stack, isOver), ...flapping]);

  const isAccepted = ({ attempts }: Offer): boolean => attempts.some(({ outcome }) => outcome.kind === 'accepted');
  const due = (room: string): number => offers.filter((offer) => offer.room === room && isAccepted(offer)).length;
  for (const { client } of clients) {
    const rooms = client.subscriptions.map(({ room }) => room);
    const wanted = rooms.reduce((sum, room) => sum + due(room), 0);
    await eventually(() => client.socket.connected && client.received.length >= wanted, {
      withinMs: 20_000,
      what: 'a client to have caught up',
    }).catch(() => {});
  }
  // a stock client that gave up by itself is no loss of the relay's
  const left = clients
    .filter(({ client }) => !client.socket.connected)
    .map(({ client, name }) => {
      const { _readyState, engine } = client.socket.io;
      return {
        name,
        active: client.socket.active,
        manager: _readyState,
        engine: engine?.readyState,
        errors: client.connectErrors.slice(-3).map(String),
        disconnects: client.disconnects.slice(-3),
        connects: client.connects.slice(-2),
        now: Date.now(),
      };
    });
  expect(left).toEqual([]);
  const recoveries = clients.flatMap(({ client, name }) =>
    client.connects.slice(1).map((connect) => ({ name, ...connect })),
  );
  expect(recoveries.length).toBeGreaterThan(RETURNS);
  const fresh = recoveries.filter(({ recovered }) => !recovered);
  const ledger = checkLedger({ offers, subscribers: clients.map(({ client, name }) => client.account(name)) });
  expect({ fresh, ...ledger.details }).toEqual({
    fresh: [],
    lost: [],
    doubled: [],
    outOfOrder: [],
    falseGaps: [],
    phantoms: [],
  });
  expect(ledger.accepted).toBeGreaterThan(offers.length / 2);
  for (const { client } of clients) await client.stop();
  await eventually(async () => {
    for (const pod of stack.pods) expect((await pod.metrics()).get('holdfast_connections')).toBe(0);
  });
  for (const pod of stack.pods) expect(pod.logs.filter((line) => /"level":(50|60)|_failed/.test(line))).toEqual([]);
}
