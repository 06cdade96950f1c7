import { loadScript } from '../../redis/script.js';
import { formatPosition } from '../../wire/position.js';
import type { LogAccess } from '../access.js';
import { type Entry, parseEntry, parseId, type RawEntry } from '../entry.js';
import { isOfBackEnd, ownNameOf } from './group-name.js';

const REDRIVE = loadScript(import.meta.url, 'redrive');
/** Of one call: each may have the size of the largest entry. */
const CHUNK = 20;
/** Dead letter's fields that stand before those of the entry itself: id, n, r and h with their values. */
const OWN_FIELDS = 8;

export interface Failure {
  /** Redis ms. */
  readonly at: number;
  readonly member: string;
  readonly reason: 'error' | 'timeout' | 'lost';
  readonly error?: string;
}

export interface DeadLetter {
  /** `<partition>:<its own id>`. */
  readonly id: string;
  readonly topic: string;
  readonly partition: number;
  /** Of the entry in the log, which may be trimmed by now. */
  readonly position: string;
  /** When it was given up, Redis ms. */
  readonly at: number;
  readonly deliveries: number;
  /** Of its last failure. */
  readonly reason: string;
  readonly failures: readonly Failure[];
  /** Absent: it is none of ours, or of a newer version. */
  readonly entry: Entry | undefined;
}

/** Dead letters of a group in one partition. */
interface Queue {
  readonly partition: number;
  readonly dead: string;
  readonly redriven: string;
  readonly state: string;
}

/** What a back-end group has given up, over all partitions. It works while the group is active, and after it was deleted. */
export class DeadLetterQueue {
  /** @param group its name in Redis; only a back end's has dead letters */
  constructor(
    private readonly log: LogAccess,
    private readonly topic: string,
    private readonly group: string,
  ) {}

  /** How many there are, and how many fell out since there were too many. */
  async count(): Promise<{ readonly deadLetters: number; readonly dropped: number }> {
    const { redis } = this.log.connection;
    const counts = await Promise.all(
      (await this.#queues()).map(async ({ dead, state }) => [
        await redis.xlen(dead),
        Number((await redis.hget(state, 'deadDropped')) ?? 0),
      ]),
    );
    const sum = (index: number): number => counts.reduce((total, each) => total + (each[index] as number), 0);
    return { deadLetters: sum(0), dropped: sum(1) };
  }

  /** The oldest ones first, in each partition. */
  async *letters(): AsyncGenerator<DeadLetter> {
    for (const queue of await this.#queues()) {
      const { epoch } = (await this.log.describe(this.topic))[queue.partition] ?? { epoch: '' };
      for (let from = '-'; ; ) {
        const raw = (await this.log.connection.redis.callBuffer(
          'XRANGE',
          queue.dead,
          from,
          '+',
          'COUNT',
          CHUNK,
        )) as RawEntry[];
        for (const each of raw) yield this.#parse(queue, epoch, each);
        const last = raw.at(-1);
        if (!last || raw.length < CHUNK) break;
        from = `(${last[0]}`;
      }
    }
  }

  /** `undefined`: there is none of this id. */
  async letter(id: string): Promise<DeadLetter | undefined> {
    const [queue, own] = await this.#find(id);
    if (!queue) return undefined;
    const { epoch } = (await this.log.describe(this.topic))[queue.partition] ?? { epoch: '' };
    const [raw] = (await this.log.connection.redis.callBuffer('XRANGE', queue.dead, own, own)) as RawEntry[];
    return raw && this.#parse(queue, epoch, raw);
  }

  /**
   * Gives dead letters back to the group, each once, however often this is called or ended on the way. They begin anew: what
   * failed before is forgotten.
   *
   * @param ids `'all'`: those that are there now
   * @returns ids of those that it gave back
   */
  async redrive(ids: readonly string[] | 'all'): Promise<readonly string[]> {
    return this.#eachChunk(ids, async ({ dead, redriven }, chunk) => {
      return (await this.log.connection.run(REDRIVE, [dead, redriven], [this.group, ...chunk])) as string[];
    });
  }

  /**
   * Deletes dead letters, for good.
   *
   * @returns ids of those that it deleted
   */
  async drop(ids: readonly string[] | 'all'): Promise<readonly string[]> {
    return this.#eachChunk(ids, async ({ dead }, chunk) => {
      const dropped = await Promise.all(chunk.map((id) => this.log.connection.redis.xdel(dead, id)));
      return chunk.filter((_, index) => dropped[index] === 1);
    });
  }

  async #eachChunk(
    ids: readonly string[] | 'all',
    work: (queue: Queue, chunk: readonly string[]) => Promise<readonly string[]>,
  ): Promise<readonly string[]> {
    const done: string[] = [];
    for (const queue of await this.#queues()) {
      const name = (own: string): string => `${queue.partition}:${own}`;
      for await (const chunk of ids === 'all' ? this.#idsIn(queue.dead) : chunked(idsOf(ids, queue.partition)))
        done.push(...(await work(queue, chunk)).map(name));
    }
    return done;
  }

  /** Those that are there now: what is given back and given up again meanwhile is not among them. */
  async *#idsIn(dead: string): AsyncGenerator<readonly string[]> {
    const { redis } = this.log.connection;
    const [newest] = await redis.xrevrange(dead, '+', '-', 'COUNT', 1);
    if (!newest) return;
    for (let from = '-'; ; ) {
      const found = (await redis.xrange(dead, from, newest[0], 'COUNT', CHUNK)).map(([id]) => id);
      if (found.length > 0) yield found;
      if (found.length < CHUNK) return;
      from = `(${found.at(-1)}`;
    }
  }

  async #find(id: string): Promise<[Queue | undefined, string]> {
    const [own] = (await this.#queues()).flatMap((queue) =>
      idsOf([id], queue.partition).map((each) => [queue, each] as const),
    );
    return own ? [...own] : [undefined, ''];
  }

  async #queues(): Promise<readonly Queue[]> {
    if (!isOfBackEnd(this.group)) return [];
    const count = await this.log.partitionCount(this.topic);
    return Array.from({ length: count }, (_, partition) => ({
      partition,
      ...this.log.keys.group(this.topic, partition, ownNameOf(this.group)),
    }));
  }

  #parse({ partition }: Queue, epoch: string, [rawId, fields]: RawEntry): DeadLetter {
    const own = parseId(rawId);
    const [, original = '0-0', , deliveries, , reason = '', , history] = fields.slice(0, OWN_FIELDS).map(String);
    const id = parseId(original);
    const entry = parseEntry(id, fields.slice(OWN_FIELDS));
    return {
      id: `${partition}:${own.text}`,
      topic: this.topic,
      partition,
      position: formatPosition(epoch, partition, id.ms, id.seq),
      at: own.ms,
      deliveries: Number(deliveries),
      reason,
      failures: JSON.parse(history || '[]') as Failure[],
      entry: typeof entry === 'string' ? undefined : entry,
    };
  }
}

/** Own ids of those that are in this partition; what is no id is in none. */
function idsOf(ids: readonly string[], partition: number): string[] {
  return ids.flatMap((id) => {
    const [, place, own] = /^(\d{1,5}):(\d{1,15}-\d{1,15})$/.exec(id) ?? [];
    return Number(place) === partition && own !== undefined ? [own] : [];
  });
}

function* chunked(ids: readonly string[]): Generator<readonly string[]> {
  for (let at = 0; at < ids.length; at += CHUNK) yield ids.slice(at, at + CHUNK);
}
