import { Redis } from 'ioredis';
import { expect } from 'vitest';
import { RelayError } from '../../src/core/errors.js';
import type { Logger } from '../../src/core/ports.js';
import type { Entry, EpochTurn, LogGap, ReaderHandler } from '../../src/log/index.js';
import { EventLog, type EventLogOptions } from '../../src/log/index.js';
import { Keys, type PartitionKeys } from '../../src/redis/keys.js';
import { encodeEntry } from '../../src/wire/envelope.js';
import { formatPosition, type Position } from '../../src/wire/position.js';
import { Counts } from '../harness/counts.js';
import { eventually } from '../harness/poll.js';

/** The keys of every pod that is not told otherwise. */
export const KEYS = new Keys('hf:').partition('events', 0);

/** A client of the test's own, for what operators and strangers do. */
export function adminOf(url: string): Redis & AsyncDisposable {
  const redis = new Redis(url, { retryStrategy: () => 50, maxRetriesPerRequest: null });
  redis.on('error', () => {});
  return Object.assign(redis, {
    [Symbol.asyncDispose]: async (): Promise<void> => redis.disconnect(),
  });
}

/** Ids of our events that the stream holds. */
export async function idsInLog(admin: Redis, keys: PartitionKeys = KEYS): Promise<ReadonlySet<string>> {
  const found = await admin.xrange(keys.stream, '-', '+');
  const headers = found.map(([, fields]) => /"i":"([^"]+)"/.exec(fields[1] ?? '')?.[1]);
  return new Set(headers.filter((id) => id !== undefined));
}

interface Handled {
  readonly id: string;
  readonly epoch: string;
  readonly ms: number;
  readonly offset: number;
}

interface LogLine {
  readonly level: string;
  readonly event: string;
}

/** One pod's log in this process, and all that it was handed. */
export class TestPod implements AsyncDisposable {
  readonly log: EventLog;
  readonly counts = new Counts();
  readonly handled: Handled[] = [];
  readonly gaps: LogGap[] = [];
  readonly turns: EpochTurn[] = [];
  readonly lines: LogLine[] = [];
  isFenced = false;
  /** Called with every entry, after it was recorded. */
  onEntry: (entry: Entry) => void = () => {};

  constructor(
    readonly name: string,
    options: Partial<EventLogOptions> & Pick<EventLogOptions, 'url'>,
  ) {
    const handler: ReaderHandler = {
      onEntry: (entry, partition) => {
        const { epoch } = this.log.dispatched(partition);
        this.handled.push({ id: entry.header.id, epoch, ms: entry.ms, offset: entry.offset });
        this.onEntry(entry);
      },
      onGap: (gap) => this.gaps.push(gap),
      onEpoch: (turn) => this.turns.push(turn),
      onFenced: () => {
        this.isFenced = true;
      },
    };
    const line = (level: string) => (fields: object) =>
      void this.lines.push({ level, event: String((fields as { event?: unknown }).event) });
    const logger: Logger = { debug: line('debug'), info: line('info'), warn: line('warn'), error: line('error') };
    this.log = new EventLog({
      keys: new Keys('hf:'),
      topic: 'events',
      partitions: undefined,
      pod: name,
      processId: `${name}-${Math.random().toString(36).slice(2, 10)}`,
      maxEntries: 100_000,
      maxBytes: 64 * 1024 * 1024,
      maxAgeMs: 3_600_000,
      trimMs: 60_000,
      reapMs: 600_000,
      keepMs: 60_000,
      idWindowMs: 120_000,
      handler,
      logger,
      meter: this.counts,
      ...options,
    });
  }

  get ids(): readonly string[] {
    return this.handled.map(({ id }) => id);
  }

  async start(): Promise<this> {
    await this.log.start();
    this.log.beginReading();
    return this;
  }

  append(id: string, body = `["e",${JSON.stringify(id)}]`, idempotencyId: string | undefined = undefined) {
    return this.log.append(0, {
      body: bodyOf(id, body),
      ...(idempotencyId !== undefined && { idempotency: { scope: 's', id: idempotencyId } }),
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.log.stop();
  }
}

export function bodyOf(id: string, payload = `["e",${JSON.stringify(id)}]`): string {
  return encodeEntry({ rooms: ['r'], publisher: 'p', id }, payload);
}

export function startPod(name: string, options: Partial<EventLogOptions> & { url: string }): Promise<TestPod> {
  return new TestPod(name, options).start();
}

/** What publishers were told: event id → outcome. */
export class Ledger {
  readonly accepted = new Map<string, Position>();
  /** Refused for certain, each time. */
  readonly refused = new Set<string>();
  readonly unknown = new Set<string>();
  /** The longest that a caller waited for its answer, in ms. */
  slowestMs = 0;
  readonly #open = new Set<Promise<void>>();
  #next = 0;

  constructor(
    private readonly admin: Redis,
    private readonly keys: PartitionKeys = KEYS,
  ) {}

  /** One event by this pod. With `tries` > 1 it is tried again under its id. */
  async publish(pod: TestPod, tries = 1): Promise<void> {
    const id = `${pod.name}-${++this.#next}`;
    let isUnknown = false;
    for (let attempt = 1; attempt <= tries; attempt++) {
      const startedAt = performance.now();
      try {
        const { position } = await pod.append(id, undefined, id);
        this.accepted.set(id, position);
        return;
      } catch (error) {
        if (!(error instanceof RelayError) || error.code !== 'unavailable') throw error;
        isUnknown ||= error.mayHaveHappened;
        if (attempt < tries) await new Promise((resolve) => setTimeout(resolve, 20));
      } finally {
        this.slowestMs = Math.max(this.slowestMs, performance.now() - startedAt);
      }
    }
    (isUnknown ? this.unknown : this.refused).add(id);
  }

  /** Publishes from all pods, `perSecond` in total, until `work` has ended; resolves when all have their answers. */
  async during<T>(pods: readonly TestPod[], work: () => Promise<T>, perSecond = 100, tries = 1): Promise<T> {
    let turn = 0;
    const timer = setInterval(() => {
      const pod = pods[turn++ % pods.length] as TestPod;
      const one: Promise<void> = this.publish(pod, tries).finally(() => this.#open.delete(one));
      this.#open.add(one);
    }, 1000 / perSecond);
    try {
      return await work();
    } finally {
      clearInterval(timer);
      await Promise.all(this.#open);
    }
  }

  /**
   * Waits until the pod has what it is due, then compares exactly: what was acknowledged is handed over once, in order, or is gone
   * and in a gap that names it; a gap names nothing that came; nothing came that was refused.
   */
  async settle(pod: TestPod, withinMs = 15_000): Promise<void> {
    await eventually(async () => expect(this.missing(pod, await idsInLog(this.admin, this.keys))).toEqual([]), {
      withinMs,
      what: `pod ${pod.name} to have all`,
    });
    await this.check(pod);
  }

  async check(pod: TestPod): Promise<void> {
    const inLog = await idsInLog(this.admin, this.keys);
    expect({
      missing: this.missing(pod, inLog),
      doubled: doubled(pod.ids),
      outOfOrder: outOfOrder(pod),
      phantoms: pod.ids.filter((id) => this.refused.has(id)),
      falseGaps: this.#falseGaps(pod, inLog),
    }).toEqual({ missing: [], doubled: [], outOfOrder: [], phantoms: [], falseGaps: [] });
  }

  /** A trimmed gap that names what was handed over, or an epoch's that names what is still in the log, and nothing else there. */
  #falseGaps({ gaps, handled }: TestPod, inLog: ReadonlySet<string>): readonly string[] {
    return gaps
      .filter((gap) =>
        gap.reason === 'trimmed'
          ? handled.some((entry) => names(gap, entry))
          : [...this.accepted].some(
              ([id, position]) => names(gap, position) && inLog.has(id) && !this.#hasForkedAt(position, inLog),
            ),
      )
      .map(({ from, to, reason }) => `${reason} ${from.epoch}:${from.offset}-${to.offset}`);
  }

  /** Two entries had this place, each in another copy of the log, and the one that isn't in this copy is gone. */
  #hasForkedAt({ epoch, offset }: Position, inLog: ReadonlySet<string>): boolean {
    return [...this.accepted].some(([id, other]) => other.epoch === epoch && other.offset === offset && !inLog.has(id));
  }

  /** @param inLog no gap excuses these */
  missing(pod: TestPod, inLog: ReadonlySet<string> = new Set()): readonly string[] {
    const had = new Set(pod.ids);
    const isOwn = (id: string): boolean => id.startsWith(`${pod.name}-`);
    return [...this.accepted]
      .filter(([id]) => !had.has(id))
      .filter(
        ([id, position]) =>
          inLog.has(id) ||
          !pod.gaps.some(
            (gap) => names(gap, position) || wipes(pod, gap, position) || (!isOwn(id) && ends(gap, position)),
          ),
      )
      .map(([id, position]) => `${id} at ${formatPosition(position.epoch, 0, position.ms, position.offset)}`);
  }
}

function names({ from, to }: LogGap, { epoch, offset }: { epoch: string; offset: number }): boolean {
  return from.epoch === epoch && from.offset <= offset && offset <= to.offset;
}

/** An epoch's gap is told up to the newest entry that its pod knew of: what others had acknowledged behind it is gone too. */
function ends({ reason, from }: LogGap, { epoch, offset }: { epoch: string; offset: number }): boolean {
  return reason === 'epoch' && from.epoch === epoch && from.offset <= offset;
}

/** Of a log that was wiped with its meta nobody knows the end, only from where on it is gone. */
function wipes({ turns }: TestPod, { from }: LogGap, { epoch, offset }: { epoch: string; offset: number }): boolean {
  return (
    turns.some((turn) => turn.reason === 'new' && turn.from === epoch) && from.epoch === epoch && from.offset <= offset
  );
}

function doubled(ids: readonly string[]): readonly string[] {
  const seen = new Set<string>();
  return ids.filter((id) => seen.size === seen.add(id).size);
}

/** Within an epoch offsets rise; across epochs ids never come back, which `doubled` sees. */
function outOfOrder({ handled }: TestPod): readonly string[] {
  return handled
    .filter((entry, index) => {
      const before = handled[index - 1];
      return before?.epoch === entry.epoch && entry.offset <= before.offset;
    })
    .map(({ id, offset }) => `${id} at ${offset}`);
}

export async function outcomeOf(
  append: Promise<unknown>,
): Promise<{ code: string; mayHaveHappened: boolean; ms: number }> {
  const startedAt = performance.now();
  const error = await append.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  const ms = performance.now() - startedAt;
  if (error === undefined) return { code: 'ok', mayHaveHappened: false, ms };
  if (!(error instanceof RelayError)) throw error;
  return { code: error.code, mayHaveHappened: error.mayHaveHappened, ms };
}
