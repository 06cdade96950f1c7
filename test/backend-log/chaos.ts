import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { createLog, type Log } from '../../src/backend-log/index.js';
import { sleep } from '../../src/core/sleep.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { type AppendedEntry, type GroupRecord, handlingsOf } from './handlings.js';
import { MemberProcess, readNotes } from './member-process.js';
import { RedisWatch } from './redis-watch.js';
import { KEYS } from './rig.js';

export interface ChaosOptions {
  readonly seed: number;
  readonly isOrdered: boolean;
  readonly members: number;
  readonly partitions: number;
  readonly entries: number;
  readonly keys: number;
  /** Entries that are appended per second. */
  readonly perSecond: number;
  readonly leaseMs: number;
  /** Mean time of a handler. */
  readonly handlerMs: number;
  /** Some faults have their time to themselves, so that it is seen how long a takeover takes. */
  readonly isMeasured: boolean;
  /** Mean pause between two faults. */
  readonly calmMs: number;
  /** Killed once, half-way. */
  readonly restartsRedis: boolean;
}

/** Until somebody had what a member had in hand that was killed, or paused past its lease. */
export interface Takeover {
  readonly fault: string;
  readonly entry: string;
  readonly ms: number;
  /** By how much a timer and a PING of this process, or a beat of a member that nothing was done to, were late meanwhile. */
  readonly controlMs: number;
}

export interface ChaosRun {
  readonly record: GroupRecord;
  readonly faults: Readonly<Record<Fault['kind'] | 'restarts', number>>;
  readonly takeovers: readonly Takeover[];
  readonly pending: number;
  readonly deadLetters: number;
}

interface Fault {
  readonly kind: 'kill' | 'shortPause' | 'longPause' | 'join' | 'leave';
  readonly name: string;
  readonly at: number;
}

/** Before and after a fault whose consequences are measured, beside the lease. */
const ALONE_MS = 1500;
const TOPIC = 'chaos';
const GROUP = 'chaos';

/** A group whose members are killed, paused, joined and taken away at random while entries come, until all is done. */
export async function runChaos(options: ChaosOptions): Promise<ChaosRun> {
  const folder = await mkdtemp(join(tmpdir(), 'holdfast-chaos-'));
  try {
    await using redis = await startRedis();
    await using control = new Control(redis.url);
    await using watch = await RedisWatch.start(redis.url, KEYS.groupMembers(TOPIC, GROUP).members, `app:${GROUP}`);
    await using log = createLog(redis.url, { topic: TOPIC, partitions: options.partitions, maxEntries: 1_000_000 });
    const ledger = join(folder, 'ledger');
    await writeFile(ledger, '');
    await using crew = new Crew(options, redis.url, ledger);
    const publisher = new Publisher(log, options);
    await publisher.append(0);
    crew.fill();
    let restarts = 0;
    const publishing = publisher.run();
    const harming = crew.harm(publishing);
    if (options.restartsRedis) {
      await eventually(() => publisher.count > options.entries / 2, { withinMs: 600_000, what: 'half of the entries' });
      await redis.kill();
      await sleep(options.leaseMs / 2);
      await redis.start();
      restarts++;
    }
    await publishing;
    await harming;
    const admin = new Redis(redis.url);
    try {
      await whenDone(admin, options, publisher);
      await crew.stop();
      const streams = Array.from({ length: options.partitions }, (_, partition) => partition);
      const pending = await sumOf(streams, async (partition) => {
        const summary = await admin.xpending(KEYS.partition(TOPIC, partition).stream, `app:${GROUP}`);
        return Number(summary[0]);
      });
      const deadLetters = await sumOf(streams, (partition) => admin.xlen(KEYS.group(TOPIC, partition, GROUP).dead));
      const record = {
        isOrdered: options.isOrdered,
        appended: publisher.appended(),
        notes: readNotes(ledger),
        pauses: crew.pauses,
        leases: watch.leases,
        acknowledged: acknowledgedOf(watch, options.partitions),
        blind: watch.blind,
      };
      const takeovers = takeoversOf(record, crew, watch, control, options);
      const count = (kind: Fault['kind']): number => crew.faults.filter((fault) => fault.kind === kind).length;
      const faults = {
        kill: count('kill'),
        shortPause: count('shortPause'),
        longPause: count('longPause'),
        join: count('join'),
        leave: count('leave'),
        restarts,
      };
      return { record, faults, takeovers, pending, deadLetters };
    } finally {
      admin.disconnect();
    }
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function sumOf(partitions: readonly number[], ask: (partition: number) => Promise<number>): Promise<number> {
  const counts = await Promise.all(partitions.map(ask));
  return counts.reduce((sum, count) => sum + count, 0);
}

/** Everything was read by somebody, and nothing is pending. */
async function whenDone(admin: Redis, { partitions }: ChaosOptions, publisher: Publisher): Promise<void> {
  await eventually(
    async () => {
      for (let partition = 0; partition < partitions; partition++) {
        const groups = (await admin.xinfo('GROUPS', KEYS.partition(TOPIC, partition).stream)) as unknown[][];
        const own = groups.find((fields) => fields[fields.indexOf('name') + 1] === `app:${GROUP}`) ?? [];
        const [pending, last] = ['pending', 'last-delivered-id'].map((field) => own[own.indexOf(field) + 1]);
        const end = publisher.lastOf(partition);
        if (pending === 0 && String(last).split('-')[1] === String(end)) continue;
        const rows = await admin.xpending(KEYS.partition(TOPIC, partition).stream, `app:${GROUP}`, '-', '+', '10');
        const living = await admin.zrange(KEYS.groupMembers(TOPIC, GROUP).members, '0', '-1', 'WITHSCORES');
        const state = { at: last, end, rows, living, now: Date.now() };
        throw new Error(`partition ${partition}: ${pending} pending; ${JSON.stringify(state)}`);
      }
    },
    { withinMs: 60_000, what: 'the group to be done' },
  );
}

class Publisher {
  count = 0;
  readonly #placed: { partition: number; offset: number; key: string }[] = [];

  constructor(
    private readonly log: Log,
    private readonly options: ChaosOptions,
  ) {}

  /** Until it is known to be there: under one id it lands once. */
  async append(n: number): Promise<void> {
    const key = `key-${n % this.options.keys}`;
    await eventually(
      async () => {
        const { position } = await this.log.append({ event: 'e', data: { n, key }, key, id: `n-${n}` });
        const [, partition, id] = position.split(':') as [string, string, string];
        this.#placed.push({ partition: Number(partition), offset: Number(id.split('-')[1]), key });
      },
      { withinMs: 300_000, what: `entry ${n} to be appended` },
    );
    this.count++;
  }

  async run(): Promise<void> {
    const { entries, perSecond } = this.options;
    const startedAt = performance.now();
    const appends: Promise<void>[] = [];
    for (let n = 1; n < entries; n++) {
      appends.push(this.append(n));
      const aheadMs = startedAt + (n * 1000) / perSecond - performance.now();
      if (aheadMs > 10) await sleep(aheadMs);
    }
    await Promise.all(appends);
  }

  appended(): readonly AppendedEntry[] {
    const inOrder = [...this.#placed].sort((a, b) => a.partition - b.partition || a.offset - b.offset);
    return inOrder.map(({ partition, offset, key }) => ({ entry: `${partition}/${offset}`, key }));
  }

  lastOf(partition: number): number {
    return Math.max(0, ...this.#placed.filter((each) => each.partition === partition).map(({ offset }) => offset));
  }
}

/** The members' processes, and what is done to them. */
class Crew implements AsyncDisposable {
  readonly faults: Fault[] = [];
  readonly pauses: { readonly name: string; readonly from: number; readonly to: number }[] = [];
  readonly #processes = new Set<MemberProcess>();
  readonly #healthy = new Set<MemberProcess>();
  readonly #random: () => number;
  #made = 0;
  #pausing: Promise<void>[] = [];

  constructor(
    private readonly options: ChaosOptions,
    private readonly url: string,
    private readonly ledger: string,
  ) {
    this.#random = seeded(options.seed);
  }

  fill(): void {
    while (this.#running.length < this.options.members) this.#add();
  }

  /** Until the entries are all there, and every fault has been done once. */
  async harm(publishing: Promise<void>): Promise<void> {
    let isOver = false;
    const over = (): void => {
      isOver = true;
    };
    void publishing.then(over, over);
    const { members, leaseMs, calmMs, isMeasured } = this.options;
    const kinds: Fault['kind'][] = ['kill', 'longPause', 'shortPause', 'leave', 'join'];
    await eventually(() => readNotes(this.ledger).filter(({ what }) => what === 'ready').length >= members, {
      withinMs: 60_000,
      what: 'the first members',
    });
    for (let round = 0; !isOver || round < kinds.length; round++) {
      // each once first
      const kind = (kinds[round] ?? kinds[Math.floor(this.#random() * kinds.length)]) as Fault['kind'];
      // what comes of it is seen best when nothing else is going on
      const isTold = kind === 'kill' || kind === 'longPause';
      const isAlone = isMeasured && isTold && (round < kinds.length || this.#random() < 0.5);
      if (isAlone) {
        await Promise.all(this.#pausing);
        await sleep(ALONE_MS);
      }
      if (kind === 'join') {
        if (round < kinds.length || this.#running.length < members + 2) this.#note(kind, this.#add());
      } else if (this.#healthy.size > 2) await this.#harm(kind);
      await sleep(isAlone ? leaseMs + ALONE_MS : 2 * this.#random() * calmMs);
      if (kind === 'kill') this.fill();
    }
    await Promise.all(this.#pausing);
  }

  /** Ends them in peace. */
  async stop(): Promise<void> {
    const running = this.#running;
    for (const process of running) process.signal('SIGTERM');
    await eventually(() => running.every(({ isRunning }) => !isRunning), { withinMs: 15_000, what: 'members to stop' });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#processes].map((process) => process[Symbol.asyncDispose]()));
  }

  get #running(): readonly MemberProcess[] {
    return [...this.#processes].filter(({ isRunning }) => isRunning);
  }

  async #harm(kind: Exclude<Fault['kind'], 'join'>): Promise<void> {
    const all = [...this.#healthy];
    const process = all[Math.floor(this.#random() * all.length)] as MemberProcess;
    if (!process.isRunning) throw new Error(`${process.name} ended unasked:\n${process.output}`);
    this.#healthy.delete(process);
    const { leaseMs } = this.options;
    switch (kind) {
      case 'kill':
        this.#note(kind, process);
        process.signal('SIGKILL');
        await process.ended();
        this.#processes.delete(process);
        return;
      case 'leave':
        this.#note(kind, process);
        process.signal('SIGTERM');
        return;
      case 'shortPause':
        return void this.#pausing.push(this.#pause(process, kind, leaseMs * (0.1 + 0.4 * this.#random())));
      case 'longPause':
        return void this.#pausing.push(this.#pause(process, kind, leaseMs * (1.5 + this.#random())));
      default:
        kind satisfies never;
    }
  }

  async #pause(process: MemberProcess, kind: 'shortPause' | 'longPause', ms: number): Promise<void> {
    this.#note(kind, process);
    const from = Date.now();
    process.signal('SIGSTOP');
    await sleep(ms);
    this.pauses.push({ name: process.name, from, to: Date.now() });
    process.signal('SIGCONT');
    this.#healthy.add(process);
  }

  #note(kind: Fault['kind'], { name }: MemberProcess): void {
    this.faults.push({ kind, name, at: Date.now() });
  }

  #add(): MemberProcess {
    const { isOrdered, leaseMs, handlerMs } = this.options;
    const process = new MemberProcess({
      url: this.url,
      topic: TOPIC,
      group: GROUP,
      ordered: isOrdered,
      name: `m${++this.#made}`,
      ledger: this.ledger,
      handlerMs,
      failPercent: 1,
      leaseMs,
      concurrency: 8,
      maxDeliveries: 100,
      backoffMs: 20,
      maxBackoffMs: 200,
    });
    this.#processes.add(process);
    this.#healthy.add(process);
    return process;
  }
}

/** How late this process's own timers and a PING are: what a busy machine adds to every time that is measured. */
class Control implements AsyncDisposable {
  readonly #late: { readonly at: number; readonly ms: number }[] = [];
  readonly #over = new AbortController();
  readonly #redis: Redis;
  readonly #probing: Promise<void>;

  constructor(url: string) {
    this.#redis = new Redis(url, { retryStrategy: () => 50, maxRetriesPerRequest: 0, enableOfflineQueue: false });
    this.#redis.on('error', () => {});
    this.#probing = this.#probe();
  }

  worst(from: number, to: number): number {
    return Math.max(0, ...this.#late.filter(({ at, ms }) => at >= from && at - ms <= to).map(({ ms }) => ms));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#over.abort();
    await this.#probing;
    this.#redis.disconnect();
  }

  async #probe(): Promise<void> {
    const { signal } = this.#over;
    while (!signal.aborted) {
      const from = performance.now();
      await sleep(50, signal);
      await this.#redis.ping().catch(() => {});
      this.#late.push({ at: Date.now(), ms: performance.now() - from - 50 });
    }
  }
}

function acknowledgedOf(watch: RedisWatch, partitions: number): ReadonlyMap<string, number> {
  const acknowledged = new Map<string, number>();
  for (let partition = 0; partition < partitions; partition++)
    for (const [id, at] of watch.acknowledged.get(KEYS.partition(TOPIC, partition).stream) ?? [])
      acknowledged.set(`${partition}/${id.split('-')[1]}`, at);
  return acknowledged;
}

/** Of faults that had their time to themselves: others may rightly hold up who would take over. */
function takeoversOf(
  record: GroupRecord,
  { faults, pauses }: Crew,
  { claimed, blind }: RedisWatch,
  control: Control,
  { leaseMs, partitions }: ChaosOptions,
): readonly Takeover[] {
  const partitionOf = new Map(
    Array.from({ length: partitions }, (_, partition) => [KEYS.partition(TOPIC, partition).stream, partition]),
  );
  const claims = claimed
    .filter(({ by }) => by !== 'released')
    .map(({ at, stream, id, by }) => ({ at, by, entry: `${partitionOf.get(stream)}/${id.split('-')[1]}` }));
  const handlings = handlingsOf(record.notes);
  const takeovers: Takeover[] = [];
  for (const fault of faults) {
    if (fault.kind !== 'kill' && fault.kind !== 'longPause') continue;
    const { name, at } = fault;
    const until = at + leaseMs + ALONE_MS - 50;
    const isDisturbed =
      faults.some((other) => other !== fault && other.at > at - 1000 && other.at < until) ||
      pauses.some((pause) => pause.name !== name && pause.from < until && pause.to > at) ||
      blind.some(({ from, to }) => from < until && to + leaseMs > at);
    if (isDisturbed) continue;
    for (const handling of handlings) {
      const isInHand =
        handling.name === name && handling.begun.at <= at && (record.acknowledged.get(handling.entry) ?? at) >= at;
      if (!isInHand) continue;
      const claim = claims.find((each) => each.entry === handling.entry && each.at > at && each.by !== handling.member);
      // its own acknowledgement was on its way, or it was paused for less than it took
      if (!claim) continue;
      takeovers.push({
        fault: fault.kind,
        entry: handling.entry,
        ms: claim.at - at,
        controlMs: Math.max(control.worst(at, claim.at), lateBeat(record, at, claim.at, leaseMs)),
      });
    }
  }
  return takeovers;
}

/** What the machine kept members' beats back by: as Redis saw those that lived on both sides of that time, and were not paused. */
function lateBeat({ leases, pauses }: GroupRecord, from: number, to: number, leaseMs: number): number {
  let late = 0;
  for (const [member, beats] of leases) {
    const isPaused = pauses.some(
      (pause) => member.startsWith(`${pause.name}-`) && pause.from < to && pause.to > from - leaseMs,
    );
    const before = beats.findLastIndex(({ at }) => at <= from);
    if (isPaused || before < 0 || !beats.some(({ at }) => at >= to)) continue;
    for (let index = before; (beats[index]?.at ?? to) < to; index++)
      late = Math.max(late, (beats[index + 1]?.at ?? to) - (beats[index]?.at ?? to) - leaseMs / 4);
  }
  return late;
}

/** The same numbers, 0 to 1, for the same seed. */
function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}
