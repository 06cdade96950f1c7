// Clients of one side in a process of their own, so that what they cost is not what is measured. Commands come from side.ts.
import { answer, nowUs } from './answer.mjs';
import { digest, expectation } from './plan.mjs';
import { RawClient } from './raw-client.mjs';

/** How many connect at the same time when nothing else is said. */
const CONCURRENCY = 32;

/** One subscriber over its reconnects, with the ledger of the present plan. */
class Subscriber {
  client;
  count = 0;
  digest = 0;
  expected = { count: 0, digest: 0 };

  /** @param token of a relay's client, which asks for its rooms; a pod's is put into them */
  constructor(rooms, token) {
    this.rooms = rooms;
    this.token = token;
  }

  async connect(port) {
    const { pid, offset } = this.client ?? {};
    const auth = {
      ...(this.token ? { token: this.token } : { rooms: this.rooms }),
      ...(pid && offset && { pid, offset }),
    };
    const client = new RawClient(port, auth, (event) => this.#onEvent(event));
    this.client = client;
    await client.ready;
    if (this.token && !client.isRecovered) await Promise.all(this.rooms.map((room) => client.subscribe(room)));
  }

  expect(expected) {
    this.count = 0;
    this.digest = 0;
    this.expected = expected;
  }

  get isExact() {
    return this.count === this.expected.count && this.digest === this.expected.digest;
  }

  #onEvent({ n, at }) {
    this.digest = digest(this.digest, n);
    if (latencies) latencies.push(nowUs() - at);
    if (++this.count === this.expected.count && --missing === 0) arrivedAt = nowUs();
  }
}

let subscribers = [];
/** Subscribers that have not yet received as many as they expect. */
let missing = 0;
let arrivedAt = 0;
let latencies;

function strayed() {
  const bad = subscribers.findIndex((subscriber) => !subscriber.isExact);
  if (bad < 0) return undefined;
  const { count, expected, client } = subscribers[bad];
  const order = count === expected.count ? ', but not these or not in this order' : '';
  const state = client.isClosed ? ', closed' : '';
  return `subscriber ${bad} of ${subscribers.length}${state}: ${count} of ${expected.count} events${order}`;
}

async function connectAll(port, concurrency, list) {
  const queue = [...list];
  const startedAt = nowUs();
  const lane = async () => {
    for (let next = queue.shift(); next; next = queue.shift()) await next.connect(port);
  };
  await Promise.all(Array.from({ length: Math.min(concurrency, list.length) }, lane));
  return { startedAt, endedAt: nowUs() };
}

answer({
  /** The i-th joins `rooms[i % rooms.length]`, a list of rooms. */
  async connect({ port, token, count, rooms, concurrency = CONCURRENCY }) {
    const added = Array.from({ length: count }, (_, i) => new Subscriber(rooms[i % rooms.length], token));
    subscribers.push(...added);
    return connectAll(port, concurrency, added);
  },

  /**
   * A plan begins; how many deliveries it makes. What came of the last one must still be exact, or something was delivered
   * twice; a `probe` may have been lost.
   */
  expect({ plan, isTimed = false, isProbe = false }) {
    const stray = isProbe ? undefined : strayed();
    if (stray) throw new Error(`after the last plan: ${stray}`);
    latencies = isTimed ? [] : undefined;
    const known = new Map();
    for (const subscriber of subscribers) {
      const key = subscriber.rooms.join(' ');
      if (!known.has(key)) known.set(key, expectation(plan, subscriber.rooms));
      subscriber.expect(known.get(key));
    }
    missing = subscribers.filter(({ expected }) => expected.count > 0).length;
    return subscribers.reduce((sum, { expected }) => sum + expected.count, 0);
  },

  /** Resolves when everybody has received the plan, exactly. */
  async arrived({ withinMs }) {
    const deadline = nowUs() + withinMs * 1000;
    while (missing > 0 && nowUs() < deadline) await new Promise((resolve) => setTimeout(resolve, 10));
    const stray = strayed();
    if (stray) throw new Error(missing > 0 ? `after ${withinMs} ms: ${stray}` : stray);
    const sorted = Float64Array.from(latencies ?? []).sort();
    const quantile = (q) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))];
    return { arrivedAt, p50: quantile(0.5), p99: quantile(0.99) };
  },

  cut() {
    for (const { client } of subscribers) client.cut();
  },

  /** Everybody comes back, with pid and position; what is missed may arrive at once. */
  async resume({ port, concurrency = subscribers.length }) {
    const times = await connectAll(port, concurrency, subscribers);
    return { ...times, recovered: subscribers.filter(({ client }) => client.isRecovered).length };
  },

  leave() {
    for (const { client } of subscribers) client.cut();
    subscribers = [];
    missing = 0;
  },
});
