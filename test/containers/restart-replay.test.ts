import { expect, test } from 'vitest';
import { type Client, connect } from '../harness/client.js';
import { checkLedger, isClean, printLedger } from '../harness/ledger.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { DRAIN_MS, type RelayContainer, Stack } from './stack.js';
import { Writer } from './writer.js';

const ROOM = 'orders';
const EVENTS = 1000;
/** The fault comes when so many are in. */
const BEFORE = 200;

async function withStack(work: (stack: Stack) => Promise<void>): Promise<void> {
  await using stack = await Stack.start();
  try {
    await work(stack);
  } catch (error) {
    console.error(await stack.logs());
    throw error;
  }
}

async function subscriber(relay: RelayContainer): Promise<Client> {
  const client = await connect(relay.url, { token: await token({ sub: 'reader', caps: ALL_CAPS }) });
  expect(await client.subscribe(ROOM)).toMatchObject({ ok: true });
  return client;
}

/** Else the fault came after the writing, and the test says nothing. */
function expectUnfinished({ acceptedCount }: Writer): void {
  expect(acceptedCount).toBeLessThan(EVENTS);
}

/** Every accepted event at the client, once, in the order of writing, without a gap. */
async function expectAll(client: Client, writer: Writer): Promise<void> {
  await eventually(() => client.received.length >= EVENTS, { withinMs: 30_000, what: `${EVENTS} events` }).catch(
    () => {}, // the ledger tells it better
  );
  const ledger = checkLedger({ offers: writer.offers, subscribers: [client.account('reader')] });
  console.log(`${printLedger(ledger)}, failed attempts: ${writer.failures}, connects: ${client.connects.length}`);
  expect(isClean(ledger), printLedger(ledger)).toBe(true);
  expect(ledger).toMatchObject({ offered: EVENTS, accepted: EVENTS, gaps: 0 });
  expect(client.received.map(({ meta }) => meta.id)).toEqual(writer.ids);
}

/** Each return. */
function expectRecovered({ connects }: Client): void {
  expect(connects.length).toBeGreaterThan(1);
  expect(connects.slice(1).every(({ recovered }) => recovered)).toBe(true);
}

test('SIGKILL of the relay amid 1,000 writes: all events once, in order, and the client is recovered', () =>
  withStack(async (stack) => {
    const relay = await stack.startRelay('relay-0');
    await using client = await subscriber(relay);
    const writer = new Writer({ url: relay.url, room: ROOM, count: EVENTS });
    await writer.untilAccepted(BEFORE);
    await relay.kill();
    await writer.untilFailing();
    await relay.start();
    expectUnfinished(writer);
    await writer.done;
    await expectAll(client, writer);
    expectRecovered(client);
  }));

test('docker stop and start amid 1,000 writes: exit code 0 within the drain, all events once, in order', () =>
  withStack(async (stack) => {
    const relay = await stack.startRelay('relay-0');
    await using client = await subscriber(relay);
    const writer = new Writer({ url: relay.url, room: ROOM, count: EVENTS });
    await writer.untilAccepted(BEFORE);
    const stoppedAt = performance.now();
    expect(await relay.stop(30)).toBe(0);
    expect(performance.now() - stoppedAt).toBeLessThan(DRAIN_MS + 5000);
    await writer.untilFailing();
    await relay.start();
    expectUnfinished(writer);
    await writer.done;
    await expectAll(client, writer);
    expectRecovered(client);
  }));

test('SIGKILL of Redis amid 1,000 writes: all accepted events once, in order, and nobody is thrown out', () =>
  withStack(async (stack) => {
    const relay = await stack.startRelay('relay-0');
    await using client = await subscriber(relay);
    const writer = new Writer({ url: relay.url, room: ROOM, count: EVENTS });
    await writer.untilAccepted(BEFORE);
    await stack.redis.kill();
    await writer.untilFailing();
    await stack.redis.start();
    expectUnfinished(writer);
    await writer.done;
    await expectAll(client, writer);
    expect(client.disconnects).toEqual([]);
  }));

test("what is written through another relay while the client's own is dead reaches it at its return", () =>
  withStack(async (stack) => {
    const [relay, other] = await Promise.all([stack.startRelay('relay-0'), stack.startRelay('relay-1')]);
    await using client = await subscriber(relay);
    const writer = new Writer({ url: other.url, room: ROOM, count: EVENTS });
    await writer.untilAccepted(BEFORE);
    await relay.kill();
    await writer.done;
    expect(client.received.length).toBeLessThan(EVENTS);
    await relay.start();
    await expectAll(client, writer);
    expectRecovered(client);
    expect(writer.failures).toBe(0);
  }));
