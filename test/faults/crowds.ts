import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { get, type IncomingMessage } from 'node:http';
import { setTimeout as pass } from 'node:timers/promises';
import { expect } from 'vitest';
import { parsePosition } from '../../src/wire/position.js';
import { join, publish, type Stack, someone, startStack } from '../gateway/fixture.js';
import { RawClient } from '../gateway/raw-client.js';
import type { ToldGap } from '../harness/ledger.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { expectSound } from './hazards.js';

const ROOM = 'crowd';
/** What a member waits before it comes back, at most, in ms. */
const BACK_MS = 500;

type Opened = 'closed' | { readonly pid: string };

/**
 * One of many on raw sockets, cheap enough that a test's process is not what is measured: of an event it keeps the number, of
 * the rest the position.
 */
class Member {
  /** Numbers of the events that came, in order. */
  readonly seen: number[] = [];
  readonly gaps: ToldGap[] = [];
  refusals = 0;
  pid = '';
  /** Newest position that it knows. */
  offset: string | undefined;
  #client: RawClient | undefined;

  constructor(private readonly bearer: string) {}

  get socket() {
    return this.#client?.socket;
  }

  get isClosed(): boolean {
    return this.#client?.isClosed ?? true;
  }

  /** Resolves when CONNECT is there, or the connection has gone. */
  connect(port: number): Promise<Opened> {
    const { pid, offset } = this;
    const auth = { token: this.bearer, ...(pid !== '' && { pid, ...(offset !== undefined && { offset }) }) };
    return new Promise((resolve) => {
      const client = new RawClient(port, {
        onText: (text) => {
          if (text.startsWith('0')) client.send(`40${JSON.stringify(auth)}`);
          else if (text.startsWith('40')) {
            this.pid = JSON.parse(text.slice(2)).pid;
            resolve({ pid: this.pid });
          } else if (text.startsWith('44')) this.refusals++;
          else return this.#take(text);
          return true;
        },
      });
      client.socket.once('close', () => resolve('closed'));
      this.#client = client;
    });
  }

  async subscribe(room: string): Promise<void> {
    expect(await this.#client?.ask(1, 'subscribe', { room })).toMatchObject({ ok: true });
  }

  /** It comes back with what it has, as often as it must. */
  async resume(port: number, isOver: () => boolean): Promise<void> {
    const { pid } = this;
    while (!isOver()) {
      const opened = await this.connect(port);
      if (opened === 'closed') await pass(Math.random() * BACK_MS);
      else {
        expect(opened.pid).toBe(pid);
        return;
      }
    }
  }

  async stop(): Promise<void> {
    await this.#client?.stop();
  }

  #take(text: string): boolean {
    const number = /^42\["e",\{"n":(\d+)/.exec(text.slice(0, 50))?.[1];
    if (number !== undefined) this.seen.push(Number(number));
    else if (text.startsWith('42["holdfast:gap"')) {
      this.gaps.push(JSON.parse(text.slice(2))[1]);
      return true;
    } else if (!text.startsWith('42["holdfast:position"')) return false;
    this.offset = /"([^"]+)"\]$/.exec(text.slice(-100))?.[1] ?? this.offset;
    return true;
  }
}

/** Members that are connected and subscribed, some at a time. */
async function gather(pod: Pod, count: number): Promise<Member[]> {
  const members: Member[] = [];
  while (members.length < count) {
    const some = await Promise.all(
      Array.from({ length: Math.min(50, count - members.length) }, async () => {
        const member = new Member(await token({ sub: someone('member'), caps: ALL_CAPS }));
        expect(await member.connect(pod.port)).not.toBe('closed');
        await member.subscribe(ROOM);
        return member;
      }),
    );
    members.push(...some);
  }
  return members;
}

const numbers = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

async function publishNumbered(pod: Pod, from: number, count: number, bytes: number): Promise<void> {
  const text = 'x'.repeat(bytes);
  // a request may have two megabytes
  const step = Math.max(1, Math.min(100, Math.floor(1_500_000 / (bytes + 100))));
  for (let at = 0; at < count; at += step)
    await publish(
      pod,
      ROOM,
      numbers(Math.min(step, count - at)).map((n) => ({ n: from + at + n, text })),
    );
}

/** All of `members` have all of 0 … count − 1 once, in order, and heard of no gap. */
async function expectExact(members: readonly Member[], count: number, withinMs: number): Promise<void> {
  const lacking = (): number => members.filter(({ seen }) => seen.length < count).length;
  await eventually(() => expect(lacking()).toBe(0), { withinMs, what: 'all members to have all' });
  const all = numbers(count).join();
  expect(members.filter(({ seen }) => seen.join() !== all)).toEqual([]);
  expect(members.filter(({ gaps, refusals }) => gaps.length + refusals > 0)).toEqual([]);
}

/** In a pod: collects its garbage on SIGUSR2, so that what it keeps can be told from what it has not cleared away yet. */
const COLLECTS = `
  import v8 from 'node:v8';
  import vm from 'node:vm';
  v8.setFlagsFromString('--expose-gc');
  const collect = vm.runInNewContext('gc');
  process.on('SIGUSR2', () => collect());`;

/** What a pod with `COLLECTS` keeps, in bytes: the least of some looks, since what was collected is freed a little later. */
async function keptBytes(pod: Pod): Promise<number> {
  let least = Number.POSITIVE_INFINITY;
  for (let look = 0; look < 5; look++) {
    process.kill(pod.pid, 'SIGUSR2');
    const metrics = await pod.metrics();
    const of = (name: string): number => metrics.get(name) ?? Number.NaN;
    least = Math.min(least, of('nodejs_heap_size_used_bytes') + of('nodejs_external_memory_bytes'));
    await pass(100);
  }
  return least;
}

/** How long a process's main thread has waited for a core, in ms (Linux; 0 where the kernel doesn't say). */
async function waitedMs({ pid }: Pod): Promise<number> {
  const [, waitedNs] = (await readFile(`/proc/${pid}/schedstat`, 'utf8').catch(() => '')).split(' ');
  return Number(waitedNs ?? 0) / 1e6;
}

/** The most that a process had in memory since `begin`, and what it had then (Linux). */
class Memory {
  private constructor(
    private readonly pid: number,
    private readonly before: number,
  ) {}

  static async begin({ pid }: Pod): Promise<Memory> {
    await writeFile(`/proc/${pid}/clear_refs`, '5'); // the high-water mark begins anew
    return new Memory(pid, await statusOf(pid, 'VmRSS'));
  }

  async grownBytes(): Promise<number> {
    return (await statusOf(this.pid, 'VmHWM')) - this.before;
  }
}

async function statusOf(pid: number, field: string): Promise<number> {
  const text = await readFile(`/proc/${pid}/status`, 'utf8');
  return 1024 * Number(new RegExp(`^${field}:\\s+(\\d+) kB`, 'm').exec(text)?.[1]);
}

/** Over a connection of its own, as an orchestrator's probe. */
async function readinessOf({ opsPort }: Pod): Promise<number> {
  const asking = get({ port: opsPort, path: '/_readiness', agent: false, timeout: 10_000 });
  asking.on('timeout', () => asking.destroy(new Error('no answer')));
  const [response] = (await once(asking, 'response')) as [IncomingMessage];
  response.resume();
  return response.statusCode ?? 0;
}

/** Asks for readiness again and again until it is told to stop. */
class Prober {
  readonly statuses = new Set<number | string>();
  slowestMs = 0;
  #isOver = false;
  readonly #running: Promise<void>;

  constructor(private readonly pod: Pod) {
    this.#running = this.#probeForever();
  }

  async stop(): Promise<void> {
    this.#isOver = true;
    await this.#running;
  }

  async #probeForever(): Promise<void> {
    while (!this.#isOver) {
      const startedAt = performance.now();
      const status = await readinessOf(this.pod).catch((error: NodeJS.ErrnoException) => error.code ?? error.message);
      this.statuses.add(status);
      this.slowestMs = Math.max(this.slowestMs, performance.now() - startedAt);
      await pass(100);
    }
  }
}

const metricOf = async (pod: Pod, name: string): Promise<number> => (await pod.metrics()).get(name) ?? Number.NaN;

const delayOf = (metrics: ReadonlyMap<string, number>): number =>
  1000 * (metrics.get('holdfast_event_loop_delay_seconds{stat="max"}') ?? Number.NaN);

/** How late the loop was at worst since this was last asked, ms. */
const worstDelayMs = async (pod: Pod): Promise<number> => delayOf(await pod.metrics());

async function dismiss(members: readonly Member[]): Promise<void> {
  await Promise.all(members.map((member) => member.stop()));
}

export interface SilentOptions {
  readonly silent: number;
  /** By tens. */
  readonly events: number;
  readonly bytes: number;
}

export interface SilentFigures {
  readonly publishedBytes: number;
  /** More than before anything was published. */
  readonly keptBytes: number;
}

/** Publishes in step with some who read, so that a small log cuts nothing that they still wait for; they get all in time. */
async function publishBeside(pod: Pod, { events, bytes }: SilentOptions): Promise<void> {
  const readers = await Promise.all([1, 2, 3].map(() => join(pod, { rooms: [ROOM] })));
  for (let at = 0; at < events; at += 10) {
    await publishNumbered(pod, at, 10, bytes);
    await eventually(() => readers.every(({ received }) => received.length === at + 10), { what: 'who reads' });
  }
  for (const reader of readers) {
    expect(reader.received.map(({ data }) => (data as { n: number }).n)).toEqual(numbers(events));
    expect([reader.gaps, reader.disconnects]).toEqual([[], []]);
    await reader.stop();
  }
}

/** Clients stop reading for good. They are closed, and come back to all that they missed. */
export async function neverRead(options: SilentOptions): Promise<void> {
  const { silent, events } = options;
  await using stack = await startStack(1, { env: { HOLDFAST_GATEWAY_SLOW_READER_MS: '1500' } });
  const pod = stack.pod(0);
  const members = await gather(pod, silent);
  for (const { socket } of members) socket?.pause();
  await publishBeside(pod, options);
  await eventually(async () => (await metricOf(pod, 'holdfast_slow_consumers_closed_total')) === silent, {
    withinMs: 20_000,
    what: 'all that do not read to be closed',
  });
  await eventually(async () => (await metricOf(pod, 'holdfast_connections')) === 0);
  await dismiss(members);
  await Promise.all(members.map((member) => member.resume(pod.port, () => false)));
  await expectExact(members, events, 60_000);
  expectSound(pod);
  await dismiss(members);
}

/** Clients stop reading for so long that the log has less than they missed, and read on over the same connection. */
export async function readOnLate(options: SilentOptions): Promise<SilentFigures> {
  const { silent, events, bytes } = options;
  await using stack = await startStack(1, {
    env: {
      NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(COLLECTS)}`,
      HOLDFAST_GATEWAY_SLOW_READER_MS: '1h',
      HOLDFAST_GATEWAY_PING_TIMEOUT_MS: '5m',
      HOLDFAST_GATEWAY_RING_BYTES: '1048576',
      HOLDFAST_LOG_MAX_BYTES: '4194304',
    },
  });
  const pod = stack.pod(0);
  const members = await gather(pod, silent);
  const before = await keptBytes(pod);
  for (const { socket } of members) socket?.pause();
  await publishBeside(pod, options);
  expect(await metricOf(pod, 'holdfast_slow_consumers_behind')).toBe(silent);
  const kept = (await keptBytes(pod)) - before;
  for (const { socket } of members) socket?.resume();
  const last = (): number => members.filter(({ seen }) => seen.at(-1) !== events - 1).length;
  await eventually(() => expect(last()).toBe(0), { withinMs: 60_000, what: 'all to have the end' });
  for (const { seen, gaps } of members) {
    expect(seen).toEqual([...new Set(seen)].sort((a, b) => a - b));
    expect(gaps.map(({ reason }) => reason)).toEqual(['trimmed']);
    // every event stands at the next offset: what is missing is as much as the gap names
    const [from, to] = gaps.flatMap((gap) => [gap.from, gap.to]).map((end) => parsePosition(end)?.offset ?? Number.NaN);
    expect(seen.length + (to as number) - (from as number) + 1).toBe(events);
  }
  expect(await metricOf(pod, 'holdfast_slow_consumers_closed_total')).toBe(0);
  expectSound(pod);
  await dismiss(members);
  return { publishedBytes: events * bytes, keptBytes: kept };
}

export interface OldestOptions {
  readonly clients: number;
  readonly events: number;
  readonly bytes: number;
}

export interface OldestFigures {
  readonly deliveredBytes: number;
  readonly seconds: number;
  readonly grownBytes: number;
  readonly worstDelayMs: number;
  /** Of the delay, so much may be the machine's: what the pod waited for a core in all that time. */
  readonly waitedMs: number;
}

/** All come back at once with the oldest position that the log has, which is older than what the pod keeps in memory. */
export async function recoverOldest({ clients, events, bytes }: OldestOptions): Promise<OldestFigures> {
  await using stack = await startStack(1, { env: { HOLDFAST_GATEWAY_RING_BYTES: '1048576' } });
  const pod = stack.pod(0);
  const members = await gather(pod, clients);
  await dismiss(members);
  await publishNumbered(pod, 0, events, bytes);
  const memory = await Memory.begin(pod);
  await worstDelayMs(pod);
  const waitedBefore = await waitedMs(pod);
  const startedAt = performance.now();
  await Promise.all(members.map((member) => member.resume(pod.port, () => false)));
  await expectExact(members, events, 600_000);
  const seconds = (performance.now() - startedAt) / 1000;
  const figures = {
    deliveredBytes: clients * events * bytes,
    seconds,
    grownBytes: await memory.grownBytes(),
    worstDelayMs: await worstDelayMs(pod),
    waitedMs: (await waitedMs(pod)) - waitedBefore,
  };
  expect(await metricOf(pod, 'holdfast_recovery_total{result="log"}')).toBe(clients);
  await publishNumbered(pod, events, 1, 10);
  await expectExact(members, events + 1, 10_000);
  expectSound(pod);
  await dismiss(members);
  return figures;
}

export interface StoppedOptions {
  readonly clients: number;
  readonly stoppedMs: number;
  /** So many are held; the others are sent away, and come again. */
  readonly held: number;
}

export interface StoppedFigures {
  readonly heldTotal: number;
  readonly grownBytes: number;
  /** Of readiness, as a busy test sees it. */
  readonly slowestProbeMs: number;
  readonly worstDelayMs: number;
  /** Of the delay, so much may be the machine's. */
  readonly waitedMs: number;
  readonly recoveredSeconds: number;
}

/** All come back with their `pid` while Redis stands still, as often as they are sent away. */
export async function returnWhileStopped({ clients, stoppedMs, held }: StoppedOptions): Promise<StoppedFigures> {
  const missed = 20;
  await using stack: Stack = await startStack(1, { env: { HOLDFAST_GATEWAY_HELD_HANDSHAKES: String(held) } });
  const pod = stack.pod(0);
  await using stays = await join(pod, { rooms: [ROOM] });
  const members = await gather(pod, clients);
  await dismiss(members);
  await eventually(async () => (await metricOf(pod, 'holdfast_connections')) === 1, { withinMs: 20_000 });
  await publishNumbered(pod, 0, missed, 200);
  await eventually(() => stays.received.length === missed);
  const memory = await Memory.begin(pod);
  await worstDelayMs(pod);
  const waitedBefore = await waitedMs(pod);
  const prober = new Prober(pod);
  stack.redis.pause();
  const stoppedAt = performance.now();
  const returning = Promise.all(members.map((member) => member.resume(pod.port, () => false)));
  await pass(stoppedMs - (performance.now() - stoppedAt));
  let delayMs = 0;
  const hasHeldMore = async (): Promise<boolean> => {
    const metrics = await pod.metrics();
    // each scrape begins it anew
    delayMs = Math.max(delayMs, delayOf(metrics));
    return (metrics.get('holdfast_handshakes_held_total') ?? 0) > clients;
  };
  await eventually(hasHeldMore, { withinMs: 30_000, what: 'more to be held than there are clients' });
  expect(members.filter(({ seen }) => seen.length > 0)).toEqual([]);
  stack.redis.resume();
  const resumedAt = performance.now();
  await returning;
  await expectExact(members, missed, 60_000);
  const recoveredSeconds = (performance.now() - resumedAt) / 1000;
  await prober.stop();
  const figures = {
    worstDelayMs: Math.max(delayMs, await worstDelayMs(pod)),
    waitedMs: (await waitedMs(pod)) - waitedBefore,
    heldTotal: await metricOf(pod, 'holdfast_handshakes_held_total'),
    grownBytes: await memory.grownBytes(),
    slowestProbeMs: prober.slowestMs,
    recoveredSeconds,
  };
  expect([...prober.statuses]).toEqual([200]);
  await eventually(
    async () =>
      expect(await stays.publish({ room: ROOM, event: 'e', data: { n: missed } })).toMatchObject({ ok: true }),
    { withinMs: 10_000 },
  );
  await expectExact(members, missed + 1, 10_000);
  expect([stays.disconnects, stays.gaps]).toEqual([[], []]);
  expectSound(pod);
  await dismiss(members);
  return figures;
}
