// Half the sockets of the production profile, all on one pod: test/rpc/profile.long.test.ts says what they do. Commands come from there.
import { answer, nowUs } from './answer.mjs';
import { eventOf } from './event.mjs';
import { pace } from './pace.mjs';
import { RawClient } from './raw-client.mjs';

/** At the same time. */
const CONNECTING = 32;
const CALL_TIMEOUT_MS = 10_000;

/**
 * @typedef {object} Plan
 * @property port of the pod
 * @property tokens of all sockets of the profile, those of this process beginning with the `first`
 * @property sockets per process
 * @property rooms that everybody is in one of
 * @property watched one in so many sockets' keep-alives is received, by one socket on the other pod
 * @property daemons per process: its first sockets serve the method `work` of their users
 */
let plan;
let members = [];

/** Beside what is right: how often an ack, an answer or an event was not. */
const wrong = [];
const latencies = { keepAlive: [], durable: [], call: [] };
/** Of earlier runs: numbers go on. */
const sent = { keepAlives: 0, durable: 0, calls: 0 };
const received = { keepAlives: 0, durable: 0, calls: 0 };

/** Keep-alives and durable events are numbered apart, by room. */
const KIND = { keepAlive: 0, durable: 1 };
const numberOf = (kind, n) => 2 * n + kind;

class Member {
  /** Kind → number of the event that comes next. */
  #next = [0, 0];
  /** Of its own keep-alives. */
  beats = 0;

  constructor(index) {
    this.index = index;
  }

  async join() {
    const { port, tokens, sockets, rooms, daemons, first, watched } = plan;
    const auth = { token: tokens[this.index] };
    const isDaemon = this.index - first < daemons;
    this.client = new RawClient(port, auth, (event) => this.#onEvent(event), isDaemon && (({ params }) => params));
    await this.client.ready;
    // of a socket on the other pod
    const partner = (this.index + sockets) % (2 * sockets);
    const wanted = [`news-${this.index % rooms}`];
    if (partner % watched === 0) wanted.push(`device-${partner}`);
    for (const room of wanted) check('subscribe', await this.client.subscribe(room));
    if (isDaemon) check('rpc-register', await this.client.ask('rpc-register', { method: 'work' }));
  }

  #onEvent({ n, at }) {
    const kind = n % 2;
    const expected = this.#next[kind]++;
    if (n !== numberOf(kind, expected)) wrong.push(`socket ${this.index}: event ${n}, not ${numberOf(kind, expected)}`);
    received[kind === KIND.durable ? 'durable' : 'keepAlives']++;
    latencies[kind === KIND.durable ? 'durable' : 'keepAlive'].push(nowUs() - at);
  }
}

function check(what, ack) {
  if (!ack?.ok) wrong.push(`${what}: ${JSON.stringify(ack)}`);
}

const pending = new Set();
/** Everything asked for must have been answered at the end. */
function watch(promise) {
  pending.add(promise);
  promise.finally(() => pending.delete(promise));
}

async function beat(k) {
  const member = members[k % members.length];
  const data = eventOf(numberOf(KIND.keepAlive, member.beats++), nowUs());
  check(
    'keep-alive',
    await member.client.ask('publish', { room: `device-${member.index}`, event: 'tick', data, ephemeral: true }),
  );
}

/** Each room has one publisher, so that its events have an order. */
async function publish(k, own) {
  const room = own[k % own.length];
  const data = eventOf(numberOf(KIND.durable, Math.floor(k / own.length)), nowUs());
  check('durable', await room.publisher.client.ask('publish', { room: room.name, event: 'tick', data }));
}

async function call(k) {
  const { daemons, sockets, first } = plan;
  const caller = members[daemons + (k % (members.length - daemons))];
  const daemon = ((first + sockets) % (2 * sockets)) + (k % daemons);
  const params = eventOf(k, nowUs());
  const ack = await caller.client.ask('rpc-call', {
    user: `user-${daemon}`,
    method: 'work',
    params,
    timeoutMs: CALL_TIMEOUT_MS,
  });
  received.calls++;
  latencies.call.push(nowUs() - params.at);
  check('call', ack);
  if (ack.ok && (ack.result?.n !== k || ack.result.at !== params.at))
    wrong.push(`call ${k}: ${JSON.stringify(ack.result)}`);
}

answer({
  async join(wanted) {
    plan = wanted;
    const { first, sockets } = plan;
    members = Array.from({ length: sockets }, (_, j) => new Member(first + j));
    const queue = [...members];
    const lane = async () => {
      for (let next = queue.shift(); next; next = queue.shift()) await next.join();
    };
    await Promise.all(Array.from({ length: CONNECTING }, lane));
    return wrong;
  },

  /** Resolves when all is sent and answered; rates are per second. */
  async run({ seconds, keepAlives, durable, calls }) {
    const { rooms, first, sockets } = plan;
    const parity = first / sockets;
    const own = Array.from({ length: rooms / 2 }, (_, i) => 2 * i + parity).map((room) => ({
      name: `news-${room}`,
      publisher: members.find(({ index }) => index % rooms === room),
    }));
    const paced = (kind, perSecond, send) => {
      const begin = sent[kind];
      sent[kind] += seconds * perSecond;
      return pace(seconds * perSecond, perSecond, (from, to) => {
        for (let k = from; k < to; k++) watch(send(begin + k));
      });
    };
    for (const kind in latencies) latencies[kind] = [];
    const startedAt = nowUs();
    await Promise.all([
      paced('keepAlives', keepAlives, beat),
      paced('durable', durable, (k) => publish(k, own)),
      paced('calls', calls, call),
    ]);
    const tookMs = (nowUs() - startedAt) / 1000;
    await Promise.all(pending);
    return { tookMs };
  },

  progress: () => ({
    wrong: wrong.slice(0, 10),
    wrongs: wrong.length,
    received,
    closed: members.filter(({ client }) => client.isClosed).length,
  }),

  latencies: () => Object.fromEntries(Object.entries(latencies).map(([kind, us]) => [kind, Float64Array.from(us)])),
});
