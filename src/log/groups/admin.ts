import { RelayError } from '../../core/errors.js';
import { loadScript } from '../../redis/script.js';
import type { LogAccess } from '../access.js';
import { whileIdle } from './admin-lock.js';
import { DeadLetterQueue } from './dead-letter-queue.js';
import { DEAD_MS, findGarbage, type Garbage, removeGarbage } from './garbage.js';
import { isOfBackEnd, isOfPod, ownNameOf, redisNameOf } from './group-name.js';
import { type MemberDescription, membersOf } from './members.js';
import { planReset, type ResetRow, type ResetTarget, resetPartition } from './reset.js';
import { type GroupDescription, redisNow } from './survey.js';

const DROP_GROUP = loadScript(import.meta.url, 'drop-group');

export interface GroupSummary {
  readonly group: string;
  readonly topic: string;
  /** `active`: somebody reads for it. */
  readonly state: 'active' | 'empty';
  /** Who lives of a back end's, or the one process of a relay's. */
  readonly members: number;
}

/** What a reset does, or would do. */
export interface Reset {
  readonly rows: readonly ResetRow[];
  /** Live members: while there are any, it is refused. */
  readonly members: readonly string[];
}

/**
 * Consumer groups, for those who look after them: over Redis alone, whether or not a relay runs. A group is called by its name in
 * Redis or, a back end's, by its own. What changes one is refused while it has live members, and keeps them out meanwhile.
 */
export class GroupAdmin {
  /** @param deadMs a member or consumer that is silent for longer is no more, ms */
  constructor(
    private readonly log: LogAccess,
    private readonly deadMs = DEAD_MS,
  ) {}

  async list(topics: readonly string[]): Promise<readonly GroupSummary[]> {
    const found = await Promise.all(topics.map((topic) => this.#summaries(topic)));
    return found.flat();
  }

  async #summaries(topic: string): Promise<readonly GroupSummary[]> {
    const { redis } = this.log.connection;
    const rows = await this.log.groups(topic);
    const now = await redisNow(redis);
    const firsts = rows.filter((row, index) => rows.findIndex(({ group }) => group === row.group) === index);
    return Promise.all(
      firsts.map(async ({ group, members, consumer }) => {
        const lease =
          isOfPod(group) && consumer !== undefined ? await redis.zscore(this.log.keys.processes, consumer) : 0;
        const live = members ?? (Number(lease) > now ? 1 : 0);
        return { group, topic, state: live > 0 ? ('active' as const) : ('empty' as const), members: live };
      }),
    );
  }

  /** One row per partition and group. Empty: there is none. */
  async describe(topic: string, group?: string): Promise<readonly GroupDescription[]> {
    const rows = await this.log.groups(topic);
    if (group === undefined) return rows;
    // somebody else's may have a name that is neither a relay's nor a back end's
    const exact = rows.filter((row) => row.group === group);
    return exact.length > 0 ? exact : rows.filter((row) => row.group === redisNameOf(group));
  }

  /** Who reads for a back-end group, and who did. */
  members(topic: string, group: string): Promise<readonly MemberDescription[]> {
    return membersOf(this.log, topic, redisNameOf(group));
  }

  /**
   * What {@link reset} would do; nothing is changed.
   *
   * @throws {RelayError} `bad_request`
   */
  async planReset(topic: string, group: string, target: ResetTarget): Promise<Reset> {
    const name = changeable(group, 'reset');
    const steps = await planReset(this.log, topic, name, await this.describe(topic, name), target);
    return { rows: steps.map(({ row }) => row), members: await this.#live(topic, name) };
  }

  /**
   * Puts a group to another place, in each partition at once; one that doesn't exist is made there. What it had in hand is
   * forgotten; dead letters stay. Ended on the way, it is done in the first partitions only: it may be called again.
   *
   * @throws {RelayError} `conflict` while it is active, `bad_request`
   */
  async reset(topic: string, group: string, target: ResetTarget): Promise<readonly ResetRow[]> {
    const name = changeable(group, 'reset');
    return whileIdle(this.log.connection, this.#memberKeys(topic, name), name, async (prolong) => {
      const steps = await planReset(this.log, topic, name, await this.describe(topic, name), target);
      const done: ResetRow[] = [];
      for (const step of steps) {
        await prolong();
        done.push(await resetPartition(this.log, step));
      }
      return done;
    });
  }

  /**
   * Deletes a group with its place, its failures and its dead letters.
   *
   * @returns false: nothing of it was there
   * @throws {RelayError} `conflict` while it is active, `bad_request`
   */
  async delete(topic: string, group: string): Promise<boolean> {
    const name = changeable(group, 'deleted');
    const keys = this.#memberKeys(topic, name);
    return whileIdle(this.log.connection, keys, name, async (prolong) => {
      let isFound = false;
      for (let partition = 0; partition < (await this.log.partitionCount(topic)); partition++) {
        await prolong();
        const { stream, meta } = this.log.keys.partition(topic, partition);
        const { state, failures, dead, redriven } = this.log.keys.group(topic, partition, ownNameOf(name));
        const places = [stream, meta, state, failures, dead, redriven];
        if ((await this.log.connection.run(DROP_GROUP, places, [name])) === 1) isFound = true;
      }
      return (await this.log.connection.redis.del(keys.members, keys.details)) > 0 || isFound;
    });
  }

  /** What nobody needs any more: see `findGarbage`. */
  async garbage(topics: readonly string[], silentMs: number): Promise<readonly Garbage[]> {
    const found = await Promise.all(
      topics.map(async (topic) =>
        findGarbage(this.log, topic, await this.log.groups(topic), { silentMs, deadMs: this.deadMs }),
      ),
    );
    return found.flat();
  }

  /** @returns those that it removed: whoever lives again meanwhile stays */
  async collect(garbage: readonly Garbage[]): Promise<readonly Garbage[]> {
    const removed: Garbage[] = [];
    for (const each of garbage) if (await this.#remove(each)) removed.push(each);
    return removed;
  }

  async #remove(garbage: Garbage): Promise<boolean> {
    if (garbage.what !== 'group') return removeGarbage(this.log, garbage, this.deadMs);
    try {
      return await this.delete(garbage.topic, garbage.group);
    } catch (error) {
      if (error instanceof RelayError && error.code === 'conflict') return false;
      throw error;
    }
  }

  deadLetters(topic: string, group: string): DeadLetterQueue {
    return new DeadLetterQueue(this.log, topic, redisNameOf(group));
  }

  async #live(topic: string, name: string): Promise<readonly string[]> {
    const now = await redisNow(this.log.connection.redis);
    return this.log.connection.redis.zrangebyscore(this.#memberKeys(topic, name).members, `(${now}`, '+inf');
  }

  #memberKeys(topic: string, name: string) {
    return this.log.keys.groupMembers(topic, ownNameOf(name));
  }
}

/** @throws {RelayError} `bad_request` for a relay's: its place is the relay's own, and moving it would lose or repeat events */
function changeable(group: string, what: string): string {
  const name = redisNameOf(group);
  if (isOfBackEnd(name)) return name;
  throw new RelayError(
    'bad_request',
    `${group} is a relay's own group: it can't be ${what}, and goes by itself when the relay is gone`,
  );
}
