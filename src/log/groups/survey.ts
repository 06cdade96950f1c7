import type { Redis } from 'ioredis';
import type { Keys } from '../../redis/keys.js';
import { formatPosition } from '../../wire/position.js';
import { parseId } from '../entry.js';
import { parseSavedPosition } from '../saved-position.js';
import { isOfBackEnd, ownNameOf } from './group-name.js';
import { fieldsOf, orNothing } from './replies.js';

/** Where a group stands in one partition. */
export interface GroupDescription {
  /** `pod:<name>` is a relay, `app:<name>` a back end. */
  readonly group: string;
  readonly topic: string;
  readonly partition: number;
  /** The newest entry that was given to it. Absent: not known. */
  readonly currentPosition: string | undefined;
  readonly logEndPosition: string;
  /** Entries that it was not given yet, by subtraction of offsets; Redis's own is wrong after trims. Absent: not known. */
  readonly lag: number | undefined;
  /** Entries that it was given and has not acknowledged. Absent: a relay's has no such list. */
  readonly pending: number | undefined;
  /** Age of the oldest of them since it was appended, in ms. Absent: there is none. */
  readonly oldestPendingMs: number | undefined;
  readonly deadLetters: number | undefined;
  /** Dead letters that come back and are not done yet. */
  readonly redriven: number | undefined;
  /** Who reads here: a relay's process id, or the one member that has the partition. */
  readonly consumer: string | undefined;
  /** Live members, over all partitions. Absent: of a relay. */
  readonly members: number | undefined;
  /** When a relay last committed, ms since 1970. */
  readonly committedAt: number | undefined;
}

/** A partition as far as its groups are concerned. */
interface SurveyedPartition {
  readonly topic: string;
  readonly partition: number;
  readonly epoch: string;
  readonly logEnd: string;
}

/** Redis's time, ms since 1970. */
export async function redisNow(redis: Redis): Promise<number> {
  const [seconds, micros] = await redis.time();
  return Number(seconds) * 1000 + Math.floor(Number(micros) / 1000);
}

/** Every group of these partitions, one row per partition, by name. */
export async function surveyGroups(
  redis: Redis,
  keys: Keys,
  partitions: readonly SurveyedPartition[],
): Promise<readonly GroupDescription[]> {
  const now = await redisNow(redis);
  const rows = (await Promise.all(partitions.map((each) => surveyPartition(redis, keys, each, now)))).flat();
  const live = new Map<string, readonly string[]>();
  for (const { group, topic } of rows) {
    if (!isOfBackEnd(group) || live.has(group)) continue;
    live.set(group, await redis.zrangebyscore(keys.groupMembers(topic, ownNameOf(group)).members, `(${now}`, '+inf'));
  }
  return rows
    .map((row) => {
      const members = live.get(row.group);
      return {
        ...row,
        members: members?.length,
        consumer: row.consumer ?? (members?.length === 1 ? members[0] : undefined),
      };
    })
    .sort((a, b) => a.group.localeCompare(b.group) || a.partition - b.partition);
}

async function surveyPartition(
  redis: Redis,
  keys: Keys,
  { topic, partition, epoch, logEnd }: SurveyedPartition,
  now: number,
): Promise<GroupDescription[]> {
  const { stream, offsets } = keys.partition(topic, partition);
  const [saved, groups] = await Promise.all([redis.hgetall(offsets), groupsIn(redis, stream)]);
  const end = parseId(logEnd.slice(logEnd.lastIndexOf(':') + 1)).seq;
  const names = new Set([...groups.keys(), ...Object.keys(saved).map((pod) => `pod:${pod}`)]);
  return Promise.all(
    [...names].map(async (group): Promise<GroupDescription> => {
      const place = { group, topic, partition, logEndPosition: logEnd, members: undefined };
      if (isOfBackEnd(group)) {
        const more = await surveyBackEnd(redis, keys, { topic, partition, group, now });
        const { at, pending } = groups.get(group) as GroupInStream;
        const currentPosition = formatPosition(epoch, partition, at.ms, at.seq);
        return { ...place, currentPosition, lag: Math.max(0, end - at.seq), pending, ...more, committedAt: undefined };
      }
      const at = parseSavedPosition((group.startsWith('pod:') && saved[group.slice(4)]) || '');
      return {
        ...place,
        currentPosition: at && formatPosition(at.epoch, partition, at.ms, at.offset),
        lag: at?.epoch === epoch ? Math.max(0, end - at.offset) : undefined,
        pending: undefined,
        oldestPendingMs: undefined,
        deadLetters: undefined,
        redriven: undefined,
        consumer: at?.holder?.processId,
        committedAt: at?.holder?.committedAt,
      };
    }),
  );
}

interface GroupInStream {
  /** Id of the newest entry that it was given. */
  readonly at: { readonly ms: number; readonly seq: number };
  readonly pending: number;
}

/** By name. A stream that isn't there has none. */
async function groupsIn(redis: Redis, stream: string): Promise<ReadonlyMap<string, GroupInStream>> {
  const found = (await redis.xinfo('GROUPS', stream).catch(orNothing)) as unknown[][];
  return new Map(
    found.map((fields) => {
      const { name, pending, 'last-delivered-id': at } = fieldsOf(fields);
      return [String(name), { at: parseId(String(at)), pending: Number(pending) }];
    }),
  );
}

async function surveyBackEnd(
  redis: Redis,
  keys: Keys,
  { topic, partition, group, now }: { topic: string; partition: number; group: string; now: number },
) {
  const own = keys.group(topic, partition, ownNameOf(group));
  const [pending, deadLetters, redriven, [holder, until]] = await Promise.all([
    redis.xpending(keys.partition(topic, partition).stream, group).catch(orNothing),
    redis.xlen(own.dead),
    redis.xlen(own.redriven),
    redis.hmget(own.state, 'holder', 'until'),
  ]);
  const oldest = typeof pending[1] === 'string' ? parseId(pending[1]).ms : undefined;
  return {
    oldestPendingMs: oldest === undefined ? undefined : Math.max(0, now - oldest),
    deadLetters,
    redriven,
    consumer: holder && Number(until) > now ? holder : undefined,
  };
}
