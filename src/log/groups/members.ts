import type { LogAccess } from '../access.js';
import { ownNameOf } from './group-name.js';
import { fieldsOf, orNothing } from './replies.js';
import { redisNow } from './survey.js';

/** What holds the entries that members gave back: no member of its own. */
const RELEASED = 'released';

/** Who reads for a back-end group. */
export interface MemberDescription {
  readonly group: string;
  readonly topic: string;
  readonly member: string;
  /** `live`: its lease lasts. `dead`: it ended. `gone`: only what it had in hand tells of it. */
  readonly state: 'live' | 'dead' | 'gone';
  readonly host: string | undefined;
  readonly pid: number | undefined;
  readonly mode: string | undefined;
  /** Redis ms. */
  readonly joinedAt: number | undefined;
  /** When its lease ends or ended, Redis ms. */
  readonly leaseUntil: number | undefined;
  /** Those that it has to itself, in an ordered group. */
  readonly partitions: readonly number[] | undefined;
  /** Entries that it was given and has not acknowledged, redriven ones among them. */
  readonly pending: number;
}

/** A consumer as Redis has it, in one stream of the group. */
export interface ConsumerInStream {
  readonly partition: number;
  readonly stream: string;
  readonly name: string;
  readonly pending: number;
  readonly idleMs: number;
}

/** Live ones first, then by name. */
export async function membersOf(log: LogAccess, topic: string, group: string): Promise<readonly MemberDescription[]> {
  const { redis } = log.connection;
  const keys = log.keys.groupMembers(topic, ownNameOf(group));
  const [now, leases, details, consumers] = await Promise.all([
    redisNow(redis),
    leasesOf(log, topic, group),
    redis.hgetall(keys.details),
    consumersOf(log, topic, group),
  ]);
  const names = new Set([...leases.keys(), ...Object.keys(details), ...consumers.map(({ name }) => name)]);
  return [...names]
    .map((member): MemberDescription => {
      const leaseUntil = leases.get(member);
      const { host, pid, mode, joinedAt, partitions } = parseDetails(details[member]);
      return {
        group,
        topic,
        member,
        state: leaseUntil === undefined ? 'gone' : leaseUntil > now ? 'live' : 'dead',
        host,
        pid,
        mode,
        joinedAt,
        leaseUntil,
        partitions: mode === 'ordered' ? partitions : undefined,
        pending: consumers.reduce((sum, { name, pending }) => sum + (name === member ? pending : 0), 0),
      };
    })
    .filter(({ member, pending }) => member !== RELEASED || pending > 0)
    .sort((a, b) => Number(b.state === 'live') - Number(a.state === 'live') || a.member.localeCompare(b.member));
}

/** Member → end of its lease, Redis ms. */
export async function leasesOf(log: LogAccess, topic: string, group: string): Promise<ReadonlyMap<string, number>> {
  const { members } = log.keys.groupMembers(topic, ownNameOf(group));
  const flat = await log.connection.redis.zrange(members, '0', '-1', 'WITHSCORES');
  const leases = new Map<string, number>();
  for (let at = 0; at + 1 < flat.length; at += 2) leases.set(flat[at] as string, Number(flat[at + 1]));
  return leases;
}

/** In the log and among what was redriven, over all partitions. */
export async function consumersOf(log: LogAccess, topic: string, group: string): Promise<readonly ConsumerInStream[]> {
  const count = await log.partitionCount(topic);
  const places = Array.from({ length: count }, (_, partition) => [
    { partition, stream: log.keys.partition(topic, partition).stream },
    { partition, stream: log.keys.group(topic, partition, ownNameOf(group)).redriven },
  ]).flat();
  const found = await Promise.all(
    places.map(async (place) => {
      const raw = (await log.connection.redis.xinfo('CONSUMERS', place.stream, group).catch(orNothing)) as unknown[][];
      return raw.map(fieldsOf).map(({ name, pending, idle }) => ({
        ...place,
        name: String(name),
        pending: Number(pending),
        idleMs: Number(idle),
      }));
    }),
  );
  return found.flat();
}

type Details = Partial<Pick<MemberDescription, 'host' | 'pid' | 'mode' | 'joinedAt' | 'partitions'>>;

function parseDetails(text: string | undefined): Details {
  try {
    return (JSON.parse(text ?? '{}') ?? {}) as Details;
  } catch {
    // somebody else's
    return {};
  }
}
