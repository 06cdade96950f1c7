import { loadScript } from '../../redis/script.js';
import type { LogAccess } from '../access.js';
import { isOfBackEnd, ownNameOf } from './group-name.js';
import { consumersOf, leasesOf } from './members.js';
import { type GroupDescription, redisNow } from './survey.js';

const FORGET_MEMBERS = loadScript(import.meta.url, 'forget-members');
const DROP_CONSUMERS = loadScript(import.meta.url, 'drop-consumers');
/** A member or consumer that is silent for so long isn't one that is paused. In ms. */
export const DEAD_MS = 600_000;

/** What nobody needs any more. */
export interface Garbage {
  readonly what: 'group' | 'member' | 'consumer';
  readonly group: string;
  readonly topic: string;
  /** Of a consumer. */
  readonly partition: number | undefined;
  /** The member or consumer; absent: the group. */
  readonly name: string | undefined;
  /** For how long it has said nothing, ms. */
  readonly silentMs: number;
  /** Of a consumer: the stream that it reads. */
  readonly stream: string | undefined;
}

/**
 * Groups of back ends that nobody has read for `silentMs`, and, in those that are read, members that died and consumers that
 * have nothing in hand. A group that has dead letters stays, and so does one of which nobody knows when it was read.
 *
 * @param rows all groups of the topic
 */
export async function findGarbage(
  log: LogAccess,
  topic: string,
  rows: readonly GroupDescription[],
  limits: Limits,
): Promise<readonly Garbage[]> {
  const names = [...new Set(rows.map(({ group }) => group))].filter(isOfBackEnd);
  const found = await Promise.all(
    names.map(async (group) => {
      const own = rows.filter((row) => row.group === group);
      const hasLetters = own.some(({ deadLetters = 0, redriven = 0 }) => deadLetters + redriven > 0);
      return garbageOf(log, topic, group, { ...limits, hasLetters });
    }),
  );
  return found.flat();
}

interface Limits {
  readonly silentMs: number;
  readonly deadMs: number;
}

async function garbageOf(
  log: LogAccess,
  topic: string,
  group: string,
  { silentMs, deadMs, hasLetters }: Limits & { readonly hasLetters: boolean },
): Promise<readonly Garbage[]> {
  const [now, leases, consumers, seen] = await Promise.all([
    redisNow(log.connection.redis),
    leasesOf(log, topic, group),
    consumersOf(log, topic, group),
    seenAt(log, topic, group),
  ]);
  const place = { group, topic, partition: undefined, name: undefined, stream: undefined };
  if (![...leases.values()].some((until) => until > now)) {
    // members that left in peace have left no lease and no consumer
    const silences = [...leases.values(), ...seen].map((at) => now - at);
    const silence = Math.min(...silences, ...consumers.map(({ idleMs }) => idleMs));
    const isOld = Number.isFinite(silence) && silence > silentMs;
    return isOld && !hasLetters ? [{ ...place, what: 'group', silentMs: silence }] : [];
  }
  const dead = [...leases].filter(([, until]) => now - until > deadMs);
  const idle = consumers.filter(({ name, pending, idleMs }) => {
    return pending === 0 && idleMs > deadMs && (leases.get(name) ?? 0) < now;
  });
  return [
    ...dead.map(([name, until]) => ({ ...place, what: 'member' as const, name, silentMs: now - until })),
    ...idle.map(({ partition, stream, name, idleMs }) => {
      return { ...place, what: 'consumer' as const, partition, stream, name, silentMs: idleMs };
    }),
  ];
}

/** When a member last said how far it is, or an administrator moved the group, per partition that knows: Redis ms. */
async function seenAt(log: LogAccess, topic: string, group: string): Promise<readonly number[]> {
  const count = await log.partitionCount(topic);
  const texts = await Promise.all(
    Array.from({ length: count }, (_, partition) =>
      log.connection.redis.hget(log.keys.group(topic, partition, ownNameOf(group)).state, 'seenAt'),
    ),
  );
  return texts.flatMap((text) => (text === null ? [] : [Number(text)]));
}

/** Removes a member or consumer, unless it lives again. @returns whether it did */
export async function removeGarbage(
  log: LogAccess,
  { what, group, topic, name = '', stream = '' }: Garbage,
  deadMs: number,
): Promise<boolean> {
  if (what === 'consumer')
    return ((await log.connection.run(DROP_CONSUMERS, [stream], [group, deadMs, name])) as string[]).length > 0;
  const { members, details } = log.keys.groupMembers(topic, ownNameOf(group));
  const before = (await redisNow(log.connection.redis)) - deadMs;
  return ((await log.connection.run(FORGET_MEMBERS, [members, details], [before, name])) as string[]).length > 0;
}
