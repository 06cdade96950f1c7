import type { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createLog } from '../../src/backend-log/index.js';
import {
  type DeadLetter,
  GroupAdmin,
  LogAccess,
  type MemberDescription,
  planTrim,
  trimPartition,
} from '../../src/log/index.js';
import { Keys } from '../../src/redis/keys.js';
import { loadScript } from '../../src/redis/script.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { adminOf, bodyOf } from './rig.js';

const KEYS = new Keys('hf:');
const GROUP = 'app:billing';
/** As a member joins. */
const BEAT = loadScript(new URL('../../src/log/groups/admin.ts', import.meta.url).href, 'beat');
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

let server: RedisProcess;
let redis: Redis & AsyncDisposable;
let next = 0;

beforeAll(async () => {
  server = await startRedis();
  redis = adminOf(server.url);
});
afterAll(async () => {
  redis?.disconnect();
  await server?.stop();
});

/** A topic of the test's own, with tools for it. */
class Rig implements AsyncDisposable {
  readonly topic = `orders-${++next}`;
  readonly log = new LogAccess(server.url, KEYS, { maxEntries: 20_000, maxBytes: 10_000_000, idWindowMs: 1000 });
  readonly admin = new GroupAdmin(this.log);
  readonly members = KEYS.groupMembers(this.topic, 'billing');

  partition(index = 0) {
    return { ...KEYS.partition(this.topic, index), ...KEYS.group(this.topic, index, 'billing') };
  }

  /** One by one, so that no two have the same ms if `spread`. @returns ids, oldest first */
  async append(count: number, partition = 0): Promise<string[]> {
    const ids: string[] = [];
    for (let n = 0; n < count; n++) {
      const { position } = await this.log.append(this.topic, partition, { body: bodyOf(`e-${partition}-${n}`) });
      ids.push(`${position.ms}-${position.offset}`);
    }
    return ids;
  }

  /** The next entries, as a member of that name is given them. */
  async read(count: number, member = 'm-1', partition = 0): Promise<string[]> {
    const { stream } = this.partition(partition);
    const found = (await redis.xreadgroup('GROUP', GROUP, member, 'COUNT', count, 'STREAMS', stream, '>')) as
      | [string, [string, string[]][]][]
      | null;
    return found?.[0]?.[1].map(([id]) => id) ?? [];
  }

  /** What a member's beat says of it. A lease below 0 has ended. */
  async join(member: string, leaseMs: number, details: object = {}): Promise<void> {
    const now = await this.log.now();
    await redis.zadd(this.members.members, now + leaseMs, member);
    const said = { joinedAt: now, host: 'box', pid: 42, mode: 'shared', partitions: [], ...details };
    await redis.hset(this.members.details, member, JSON.stringify(said));
  }

  /** Given up, as a member does it. @returns their ids */
  async bury(ids: readonly string[], partition = 0): Promise<string[]> {
    const { stream, dead } = this.partition(partition);
    const made: string[] = [];
    for (const id of ids) {
      const [, fields] = (await redis.xrange(stream, id, id))[0] as [string, string[]];
      const failures = JSON.stringify([{ at: 1, member: 'm-1', reason: 'error', error: 'no such account' }]);
      const own = (await redis.xadd(dead, '*', 'id', id, 'n', 5, 'r', 'error', 'h', failures, ...fields)) as string;
      made.push(`${partition}:${own}`);
    }
    return made;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.log[Symbol.asyncDispose]();
  }
}

async function startRig(partitions = 1): Promise<Rig> {
  const rig = new Rig();
  await rig.log.whenUp(5000);
  await rig.log.makeTopic(rig.topic, partitions);
  return rig;
}

/** @param more of no interest by themselves */
async function withGroup(entries: number, more = 0): Promise<{ rig: Rig; ids: string[] }> {
  const rig = await startRig();
  const ids = await rig.append(entries);
  await Promise.all(Array.from({ length: more }, () => rig.log.append(rig.topic, 0, { body: bodyOf('more') })));
  await redis.xgroup('CREATE', rig.partition().stream, GROUP, '0');
  return { rig, ids };
}

async function lettersIn(queue: ReturnType<GroupAdmin['deadLetters']>): Promise<DeadLetter[]> {
  const all: DeadLetter[] = [];
  for await (const letter of queue.letters()) all.push(letter);
  return all;
}

const offsets = (ids: readonly string[]): number[] => ids.map((id) => Number(id.split('-')[1]));
const offsetOf = (position: string | undefined): number => Number(position?.split('-').at(-1));

describe('describe', () => {
  it('says where a group stands, what it lacks, has in hand and has given up', async () => {
    const { rig, ids } = await withGroup(10);
    await using _ = rig;
    await rig.read(6);
    await redis.xack(rig.partition().stream, GROUP, ids[0] as string, ids[1] as string);
    await rig.bury(ids.slice(0, 2));
    await rig.join('m-1', 60_000);
    const [row] = await rig.admin.describe(rig.topic, 'billing');
    expect(row).toMatchObject({ group: GROUP, partition: 0, lag: 4, pending: 4, deadLetters: 2, redriven: 0 });
    expect(row).toMatchObject({ consumer: 'm-1', members: 1 });
    expect(row?.currentPosition).toMatch(new RegExp(`:0:${ids[5]}$`));
    expect(row?.logEndPosition).toMatch(new RegExp(`:0:${ids[9]}$`));
    expect(row?.oldestPendingMs).toBeGreaterThanOrEqual(0);
    expect(await rig.admin.describe(rig.topic, 'nope')).toEqual([]);
  });

  it('the lag is a subtraction: right after a trim and after deletions', async () => {
    const { rig, ids } = await withGroup(10);
    await using _ = rig;
    await rig.read(4);
    await redis.xdel(rig.partition().stream, ids[7] as string);
    const { epoch } = (await rig.log.describe(rig.topic))[0]!;
    for (const cut of await planTrim(rig.log, rig.topic, { epoch, partition: 0, ms: 1, offset: 2 }))
      await trimPartition(rig.log, cut);
    expect((await rig.admin.describe(rig.topic, GROUP))[0]?.lag).toBe(6);
  });

  it('names who has a partition to itself, while its lease lasts', async () => {
    const { rig } = await withGroup(1);
    await using _ = rig;
    const now = await rig.log.now();
    await rig.join('m-1', 60_000);
    await rig.join('m-2', 60_000);
    const consumer = async () => (await rig.admin.describe(rig.topic, GROUP))[0]?.consumer;
    expect(await consumer()).toBeUndefined();
    await redis.hset(rig.partition().state, { holder: 'm-2', token: 3, until: now + HOUR_MS });
    expect(await consumer()).toBe('m-2');
    await redis.hset(rig.partition().state, { until: now - 1 });
    expect(await consumer()).toBeUndefined();
  });

  it('members: who lives, who died, and what each has in hand', async () => {
    const { rig } = await withGroup(10);
    await using _ = rig;
    await rig.read(3, 'm-1');
    await rig.read(2, 'm-2');
    await rig.read(1, 'm-3');
    await rig.join('m-1', -1000);
    await rig.join('m-2', 60_000, { mode: 'ordered', partitions: [0] });
    const rows = await rig.admin.members(rig.topic, 'billing');
    expect(
      rows.map(({ member, state, host, partitions, pending }) => [member, state, host, partitions, pending]),
    ).toEqual([
      ['m-2', 'live', 'box', [0], 2],
      ['m-1', 'dead', 'box', undefined, 3],
      ['m-3', 'gone', undefined, undefined, 1],
    ]);
  });

  it('list: over all topics, with who lives', async () => {
    const { rig } = await withGroup(1);
    await using _ = rig;
    await rig.join('m-1', 60_000);
    expect(await rig.log.topics()).toContain(rig.topic);
    expect(await rig.admin.list([rig.topic])).toEqual([
      { group: GROUP, topic: rig.topic, state: 'active', members: 1 },
    ]);
  });
});

describe('reset', () => {
  it('back: what was read comes again, and nothing is in hand', async () => {
    const { rig, ids } = await withGroup(10);
    await using _ = rig;
    await rig.read(8);
    await redis.hset(rig.partition().failures, { [ids[2] as string]: '[]', 'r:1-1': '[]' });
    await redis.hset(rig.partition().state, { floor: ids[7], last: 8, token: 7, holder: 'm-1', until: 1 });
    const rows = await rig.admin.reset(rig.topic, 'billing', { to: 'shift', by: -5 });
    expect(rows).toMatchObject([{ group: GROUP, partition: 0, lag: 7, clamped: undefined }]);
    expect(rows[0]?.newPosition).toMatch(new RegExp(`:0:${ids[2]}$`));
    expect(rows[0]?.currentPosition).toMatch(new RegExp(`:0:${ids[7]}$`));
    expect((await redis.xpending(rig.partition().stream, GROUP))[0]).toBe(0);
    expect(await rig.read(100)).toEqual(ids.slice(3));
    expect(await redis.hkeys(rig.partition().failures)).toEqual(['r:1-1']);
    const { epoch } = (await rig.log.describe(rig.topic))[0]!;
    // the fence goes on rising
    const { seenAt, ...state } = await redis.hgetall(rig.partition().state);
    expect(Number(seenAt)).toBeGreaterThan(0);
    expect(state).toEqual({
      floor: ids[2],
      last: '3',
      epoch,
      token: '7',
      holder: '',
      until: '1',
    });
  });

  it('forward: what lies between is not given, nor what was in hand', async () => {
    const { rig, ids } = await withGroup(10);
    await using _ = rig;
    await rig.read(4);
    await rig.admin.reset(rig.topic, GROUP, { to: 'shift', by: 3 });
    expect((await redis.xpending(rig.partition().stream, GROUP))[0]).toBe(0);
    expect(await rig.read(100)).toEqual(ids.slice(7));
    await rig.admin.reset(rig.topic, GROUP, { to: 'latest' });
    expect((await rig.admin.describe(rig.topic, GROUP))[0]).toMatchObject({ lag: 0, pending: 0 });
  });

  it('Redis’s own lag is right after it too', async () => {
    const { rig } = await withGroup(10);
    await using _ = rig;
    await rig.admin.reset(rig.topic, GROUP, { to: 'offset', offset: 4 });
    const [info] = (await redis.xinfo('GROUPS', rig.partition().stream)) as unknown[][];
    expect(info?.[info.indexOf('lag') + 1]).toBe(6);
  });

  it('of thousands of entries in hand, more than Lua passes on at once', async () => {
    const { rig } = await withGroup(0, 9000);
    await using _ = rig;
    expect(await rig.read(9000)).toHaveLength(9000);
    await rig.admin.reset(rig.topic, GROUP, { to: 'offset', offset: 1000 });
    expect((await redis.xpending(rig.partition().stream, GROUP))[0]).toBe(0);
    expect(await rig.read(9000)).toHaveLength(8000);
  });

  it('to a time: the first entry of then or later is the next', async () => {
    const rig = await startRig();
    await using _ = rig;
    const ids: string[] = [];
    for (let n = 0; n < 20; n++) {
      ids.push(...(await rig.append(1)));
      await eventually(async () => (await rig.log.now()) > Number(ids.at(-1)?.split('-')[0]));
    }
    const ms = (index: number): number => Number(ids[index]?.split('-')[0]);
    for (const [time, first] of [
      [0, 0],
      [ms(0), 0],
      [ms(7), 7],
      [ms(7) + 1, 8],
      [ms(19) + 1, 20],
    ] as const) {
      await rig.admin.reset(rig.topic, GROUP, { to: 'time', ms: time });
      expect(await rig.read(100), `time ${time}`).toEqual(ids.slice(first));
    }
    await rig.admin.reset(rig.topic, GROUP, { to: 'age', ms: HOUR_MS });
    expect(await rig.read(100)).toEqual(ids);
  });

  it('to each offset, also where many entries have the same ms, and to one that was deleted', async () => {
    const rig = await startRig();
    await using _ = rig;
    const positions = await Promise.all(
      Array.from({ length: 50 }, (_, n) => rig.log.append(rig.topic, 0, { body: bodyOf(`e-${n}`) })),
    );
    const ids = positions.map(({ position }) => `${position.ms}-${position.offset}`);
    ids.push(...(await rig.append(20)));
    await redis.xdel(rig.partition().stream, ids[29] as string);
    ids.splice(29, 1);
    for (let offset = 0; offset <= 70; offset += 1) {
      const [row] = await rig.admin.reset(rig.topic, GROUP, { to: 'offset', offset });
      expect(offsetOf(row?.newPosition)).toBe(offset);
      expect(offsets(await rig.read(100)), `offset ${offset}`).toEqual(offsets(ids).filter((each) => each > offset));
    }
  });

  it('a stranger’s entries are in no one’s way', async () => {
    const rig = await startRig();
    await using _ = rig;
    const ids = await rig.append(5);
    await redis.xadd(rig.partition().stream, '*', 'who', 'knows');
    ids.push(...(await rig.append(5)));
    for (const offset of [4, 5, 6, 9]) {
      await rig.admin.reset(rig.topic, GROUP, { to: 'offset', offset });
      const read = (await rig.read(100)).filter((id) => ids.includes(id));
      expect(offsets(read)).toEqual(offsets(ids).filter((each) => each > offset));
    }
  });

  it('what is trimmed, or not there yet, is said and clamped', async () => {
    const { rig, ids } = await withGroup(10);
    await using _ = rig;
    const { epoch } = (await rig.log.describe(rig.topic))[0]!;
    for (const cut of await planTrim(rig.log, rig.topic, { epoch, partition: 0, ms: 0, offset: 4 }))
      await trimPartition(rig.log, cut);
    const reset = async (target: Parameters<GroupAdmin['reset']>[2]) => {
      const [row] = await rig.admin.reset(rig.topic, GROUP, target);
      return [offsetOf(row?.newPosition), row?.lag, row?.clamped];
    };
    expect(await reset({ to: 'earliest' })).toEqual([4, 6, undefined]);
    expect(await rig.read(1)).toEqual([ids[4]]);
    expect(await reset({ to: 'offset', offset: 2 })).toEqual([4, 6, 'trimmed']);
    expect(await reset({ to: 'shift', by: 1000 })).toEqual([10, 0, 'beyond']);
    expect(await reset({ to: 'shift', by: -1000 })).toEqual([4, 6, 'trimmed']);
    const position = { epoch, partition: 0, ms: 1, offset: 3 };
    expect(await reset({ to: 'position', position })).toEqual([4, 6, 'trimmed']);
    expect(await reset({ to: 'position', position: { ...position, epoch: 'gone' } })).toEqual([4, 6, 'epoch']);
    const beyond = rig.admin.reset(rig.topic, GROUP, { to: 'position', position: { ...position, offset: 99 } });
    await expect(beyond).rejects.toMatchObject({ code: 'bad_request' });
  });

  it('a position moves its partition only; an offset all of them', async () => {
    const rig = await startRig(2);
    await using _ = rig;
    await rig.append(5, 0);
    await rig.append(5, 1);
    await rig.admin.reset(rig.topic, GROUP, { to: 'latest' });
    const [, { epoch }] = (await rig.log.describe(rig.topic)) as [unknown, { epoch: string }];
    const position = { epoch, partition: 1, ms: 1, offset: 2 };
    expect(await rig.admin.reset(rig.topic, GROUP, { to: 'position', position })).toHaveLength(1);
    const lags = async () => (await rig.admin.describe(rig.topic, GROUP)).map(({ lag }) => lag);
    expect(await lags()).toEqual([0, 3]);
    await rig.admin.reset(rig.topic, GROUP, { to: 'offset', offset: 1 });
    expect(await lags()).toEqual([4, 4]);
  });

  it('of a group that does not exist makes it, in the past and where nothing was appended yet', async () => {
    const rig = await startRig(2);
    await using _ = rig;
    const ids = await rig.append(5, 0);
    const plan = await rig.admin.planReset(rig.topic, 'billing', { to: 'earliest' });
    expect(plan.rows.map(({ currentPosition, lag }) => [currentPosition, lag])).toEqual([
      [undefined, 5],
      [undefined, 0],
    ]);
    expect(await rig.admin.describe(rig.topic, GROUP)).toEqual([]);
    await rig.admin.reset(rig.topic, 'billing', { to: 'earliest' });
    expect(await rig.read(100)).toEqual(ids);
    const later = await rig.append(2, 1);
    expect(await rig.read(100, 'm-1', 1)).toEqual(later);
    await expect(rig.admin.reset(rig.topic, 'other', { to: 'shift', by: 1 })).rejects.toMatchObject({
      code: 'bad_request',
    });
  });

  it('never makes a stream under a log that was deleted', async () => {
    const { rig } = await withGroup(3);
    await using _ = rig;
    await redis.del(rig.partition().stream);
    await expect(rig.admin.reset(rig.topic, GROUP, { to: 'earliest' })).rejects.toMatchObject({ code: 'conflict' });
    expect(await redis.exists(rig.partition().stream)).toBe(0);
  });

  it('a plan changes nothing', async () => {
    const { rig } = await withGroup(5);
    await using _ = rig;
    await rig.read(3);
    await rig.join('m-1', 60_000);
    const before = await rig.admin.describe(rig.topic, GROUP);
    const { rows, members } = await rig.admin.planReset(rig.topic, GROUP, { to: 'earliest' });
    expect([rows[0]?.lag, members]).toEqual([5, ['m-1']]);
    const after = await rig.admin.describe(rig.topic, GROUP);
    expect({ ...after[0], oldestPendingMs: 0 }).toEqual({ ...before[0], oldestPendingMs: 0 });
  });
});

describe('while a group is active', () => {
  it('it is neither reset nor deleted, and whoever is live is named', async () => {
    const { rig } = await withGroup(5);
    await using _ = rig;
    await rig.read(3);
    await rig.join('m-1', 60_000);
    await rig.join('m-2', 60_000);
    await rig.join('dead', -1);
    const refusal = { code: 'conflict', message: `${GROUP} is active: stop m-1, m-2 first` };
    await expect(rig.admin.reset(rig.topic, GROUP, { to: 'latest' })).rejects.toMatchObject(refusal);
    await expect(rig.admin.delete(rig.topic, GROUP)).rejects.toMatchObject(refusal);
    expect((await rig.admin.describe(rig.topic, GROUP))[0]).toMatchObject({ lag: 2, pending: 3 });
    expect(await redis.exists(rig.members.lock)).toBe(0);
  });

  it('dead members are in nobody’s way', async () => {
    const { rig, ids } = await withGroup(5);
    await using _ = rig;
    await rig.read(3);
    await rig.join('m-1', -1);
    await rig.admin.reset(rig.topic, GROUP, { to: 'earliest' });
    expect(await rig.read(100)).toEqual(ids);
  });

  it('of a reset and a member that come at once, one waits: nothing moves once the member is in', async () => {
    const { rig } = await withGroup(5);
    await using _ = rig;
    const { stream } = rig.partition();
    const { members, details, lock } = rig.members;
    let tries = 0;
    const place = async () => {
      const [info] = (await redis.xinfo('GROUPS', stream)) as unknown[][];
      return info?.[info.indexOf('last-delivered-id') + 1];
    };
    const pause = async (turns: number): Promise<void> => {
      for (let turn = 0; turn < turns; turn++) await redis.ping();
    };
    const join = async (turns: number) => {
      await pause(turns);
      for (;;) {
        tries++;
        const [status] = (await rig.log.connection.run(
          BEAT,
          [members, details, lock],
          ['m-1', 60_000, '{}'],
        )) as string[];
        if (status === 'ok') return place();
      }
    };
    const reset = async (turns: number, to: 'earliest' | 'latest') => {
      await pause(turns);
      return rig.admin.reset(rig.topic, GROUP, { to }).then(
        () => 'done',
        (error: { code: string }) => error.code,
      );
    };
    const rounds = 60;
    const outcomes = new Map<string, number>();
    for (let round = 0; round < rounds; round++) {
      await redis.del(members);
      const [placeAtJoin, outcome] = await Promise.all([
        join(round % 10),
        reset(round % 3, round % 2 === 0 ? 'latest' : 'earliest'),
      ]);
      expect(await place()).toBe(placeAtJoin);
      outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);
    }
    // both were seen, and a member had to wait, or this shows nothing
    expect([...outcomes.keys()].sort()).toEqual(['conflict', 'done']);
    expect(tries).toBeGreaterThan(rounds);
    expect(await redis.exists(lock)).toBe(0);
  });

  it('of two administrators one is told to try again, and a lock that somebody left lapses', async () => {
    const { rig } = await withGroup(5);
    await using _ = rig;
    await redis.set(rig.members.lock, 'another', 'PX', 30_000);
    const reset = () => rig.admin.reset(rig.topic, GROUP, { to: 'latest' });
    await expect(reset()).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining('by somebody else'),
    });
    expect(await redis.get(rig.members.lock)).toBe('another');
    await redis.pexpire(rig.members.lock, 50);
    await eventually(async () => void (await reset()));
  });
});

it('a relay’s own group is neither reset nor deleted', async () => {
  const { rig } = await withGroup(1);
  await using _ = rig;
  await redis.xgroup('CREATE', rig.partition().stream, 'pod:a', '0');
  await expect(rig.admin.reset(rig.topic, 'pod:a', { to: 'latest' })).rejects.toMatchObject({ code: 'bad_request' });
  await expect(rig.admin.delete(rig.topic, 'pod:a')).rejects.toMatchObject({ code: 'bad_request' });
  expect(await rig.admin.describe(rig.topic, 'pod:a')).toHaveLength(1);
});

it('delete takes all that the group has, in every partition', async () => {
  const rig = await startRig(2);
  await using _ = rig;
  await rig.append(3, 0);
  const ids = await rig.append(3, 1);
  const before = new Set(await redis.keys(`*${rig.topic}*`));
  await rig.admin.reset(rig.topic, GROUP, { to: 'earliest' });
  await rig.read(2, 'm-1', 1);
  await rig.bury(ids.slice(0, 1), 1);
  await rig.bury(ids.slice(1, 2), 1);
  await rig.admin.deadLetters(rig.topic, GROUP).redrive([(await rig.bury(ids.slice(2), 1))[0] as string]);
  await rig.join('m-1', -1);
  expect(await rig.admin.delete(rig.topic, GROUP)).toBe(true);
  expect(new Set(await redis.keys(`*${rig.topic}*`))).toEqual(before);
  expect(await rig.admin.describe(rig.topic, GROUP)).toEqual([]);
  expect(await rig.admin.delete(rig.topic, GROUP)).toBe(false);
});

describe('dead letters', () => {
  it('are listed with what happened, and shown with the event', async () => {
    const { rig, ids } = await withGroup(30);
    await using _ = rig;
    const made = await rig.bury(ids);
    const queue = rig.admin.deadLetters(rig.topic, 'billing');
    const all = await lettersIn(queue);
    expect(all.map(({ id }) => id)).toEqual(made);
    expect(await queue.letter(made[4] as string)).toMatchObject({
      id: made[4],
      position: expect.stringMatching(new RegExp(`:0:${ids[4]}$`)),
      deliveries: 5,
      reason: 'error',
      failures: [{ at: 1, member: 'm-1', reason: 'error', error: 'no such account' }],
      entry: { offset: 5, header: { id: 'e-0-4' } },
    });
    for (const id of ['0:1-1', '7:1-1', 'nonsense', '']) expect(await queue.letter(id)).toBeUndefined();
    expect(await queue.count()).toEqual({ deadLetters: 30, dropped: 0 });
  });

  it('redriven come back once, with their fields and attachments, while the group is active', async () => {
    const rig = await startRig();
    await using _ = rig;
    const attachments = [Buffer.from([0, 1, 255])];
    const { position } = await rig.log.append(rig.topic, 0, { body: bodyOf('e'), attachments });
    const id = `${position.ms}-${position.offset}`;
    const { dead, redriven, stream } = rig.partition();
    const entry = (await redis.xrangeBuffer(stream, id, id))[0]![1];
    await redis.xadd(dead, '*', 'id', id, 'n', 5, 'r', 'lost', 'h', '[{"at":1}]', ...entry);
    await rig.join('m-1', 60_000);
    const queue = rig.admin.deadLetters(rig.topic, 'billing');
    const [letter] = await lettersIn(queue);
    expect(letter?.entry?.attachments).toEqual(attachments);
    const twice = await Promise.all([queue.redrive([letter!.id]), queue.redrive([letter!.id])]);
    expect(twice.flat()).toEqual([letter!.id]);
    expect(await queue.redrive('all')).toEqual([]);
    const back = await redis.xreadgroupBuffer('GROUP', GROUP, 'm-1', 'STREAMS', redriven, '>');
    const [[, fields], ...more] = (back as [Buffer, [Buffer, Buffer[]][]][])[0]![1] as [[Buffer, Buffer[]]];
    expect(more).toEqual([]);
    expect(fields).toEqual([Buffer.from('id'), Buffer.from(id), ...entry]);
    expect(await queue.count()).toEqual({ deadLetters: 0, dropped: 0 });
    expect((await rig.admin.describe(rig.topic, GROUP)).map(({ redriven }) => redriven)).toEqual([]);
  });

  it('--all takes those that are there when it begins, over all partitions', async () => {
    const rig = await startRig(2);
    await using _ = rig;
    const made = [...(await rig.bury(await rig.append(45, 0), 0)), ...(await rig.bury(await rig.append(3, 1), 1))];
    const queue = rig.admin.deadLetters(rig.topic, 'billing');
    expect(await queue.redrive('all')).toEqual(made);
    expect(await redis.xlen(rig.partition(0).redriven)).toBe(45);
    expect(await redis.xlen(rig.partition(1).redriven)).toBe(3);
  });

  it('dropped are gone, and nothing else', async () => {
    const { rig, ids } = await withGroup(5);
    await using _ = rig;
    const made = await rig.bury(ids);
    const queue = rig.admin.deadLetters(rig.topic, 'billing');
    expect(await queue.drop([made[1] as string, '0:1-1'])).toEqual([made[1]]);
    expect((await lettersIn(queue)).map(({ id }) => id)).toEqual(made.filter((_, index) => index !== 1));
    expect(await queue.drop('all')).toHaveLength(4);
    expect(await queue.count()).toMatchObject({ deadLetters: 0 });
  });
});

it('a poisoned entry is given up by a member, redriven, and handled once', async () => {
  const rig = await startRig();
  await using _ = rig;
  const orders = createLog(server.url, { topic: rig.topic });
  try {
    let isPoisoned = true;
    const handled: [number, boolean][] = [];
    const member = orders.group('billing', { from: 'earliest' }).run(
      (entry) => {
        const { n } = entry.data as { n: number };
        if (n === 2 && isPoisoned) throw new Error('no such account');
        handled.push([n, entry.isRedriven]);
      },
      { maxDeliveries: 2, backoffMs: 10, leaseMs: 1000 },
    );
    for (const n of [1, 2, 3]) await orders.append({ event: 'order', data: { n } });
    const queue = rig.admin.deadLetters(rig.topic, 'billing');
    await eventually(async () => expect((await queue.count()).deadLetters).toBe(1), { withinMs: 15_000 });
    const [letter] = await lettersIn(queue);
    expect(letter).toMatchObject({ deliveries: 2, reason: 'error', entry: { offset: 2 } });
    expect(letter?.failures.map(({ error }) => error)).toEqual(Array(2).fill('Error: no such account'));
    isPoisoned = false;
    const [{ member: name, state }, ...others] = (await rig.admin.members(rig.topic, 'billing')) as [MemberDescription];
    expect([state, others]).toEqual(['live', []]);
    await expect(rig.admin.reset(rig.topic, 'billing', { to: 'earliest' })).rejects.toThrow(name);
    expect(await queue.redrive('all')).toEqual([letter?.id]);
    await eventually(async () => expect((await rig.admin.describe(rig.topic, 'billing'))[0]?.redriven).toBe(0), {
      withinMs: 15_000,
    });
    await member.stop();
    expect(handled.sort(([a], [b]) => a - b)).toEqual([
      [1, false],
      [2, true],
      [3, false],
    ]);
    const { failures } = rig.partition();
    expect(await redis.hkeys(failures)).toEqual([]);
    await rig.admin.reset(rig.topic, 'billing', { to: 'offset', offset: 1 });
    const again = orders.group('billing').run((entry) => void handled.push([entry.offset, entry.isRedriven]));
    await eventually(
      () =>
        expect(handled.slice(3).sort()).toEqual([
          [2, false],
          [3, false],
        ]),
      { withinMs: 15_000 },
    );
    await again.stop();
  } finally {
    await orders.close();
  }
});

describe('gc', () => {
  const found = async (rig: Rig, silentMs = 7 * DAY_MS) =>
    (await rig.admin.garbage([rig.topic], silentMs)).map(({ what, name, partition }) => [what, name, partition]);

  it('a group goes whose members have all been dead for long', async () => {
    const { rig } = await withGroup(3);
    await using _ = rig;
    await rig.join('m-1', -8 * DAY_MS);
    await rig.join('m-2', -6 * DAY_MS);
    expect(await found(rig)).toEqual([]);
    await rig.join('m-2', -7.5 * DAY_MS);
    expect(await found(rig)).toEqual([['group', undefined, undefined]]);
    const garbage = await rig.admin.garbage([rig.topic], 7 * DAY_MS);
    expect(await rig.admin.collect(garbage)).toEqual(garbage);
    expect(await rig.admin.describe(rig.topic, GROUP)).toEqual([]);
  });

  it('what is in hand does not keep it, dead letters do', async () => {
    const { rig, ids } = await withGroup(3);
    await using _ = rig;
    await rig.join('m-1', -8 * DAY_MS);
    await rig.read(1, 'm-1');
    // Redis saw that consumer just now
    expect(await found(rig)).toEqual([]);
    await redis.xgroup('DELCONSUMER', rig.partition().stream, GROUP, 'm-1');
    expect(await found(rig)).toHaveLength(1);
    await rig.bury(ids.slice(0, 1));
    expect(await found(rig)).toEqual([]);
  });

  it('one that its members left in peace goes too, and one that an administrator has moved lately stays', async () => {
    const { rig } = await withGroup(3);
    await using _ = rig;
    const { state } = rig.partition();
    await redis.hset(state, { seenAt: (await rig.log.now()) - 8 * DAY_MS });
    expect(await found(rig)).toEqual([['group', undefined, undefined]]);
    await rig.admin.reset(rig.topic, GROUP, { to: 'latest' });
    expect(await found(rig)).toEqual([]);
  });

  it('one of which nobody knows when it was read stays', async () => {
    const { rig } = await withGroup(3);
    await using _ = rig;
    expect(await found(rig, 0)).toEqual([]);
  });

  it('one that lives again meanwhile stays', async () => {
    const { rig } = await withGroup(3);
    await using _ = rig;
    await rig.join('m-1', -8 * DAY_MS);
    const garbage = await rig.admin.garbage([rig.topic], 7 * DAY_MS);
    await rig.join('m-1', 60_000);
    expect(await rig.admin.collect(garbage)).toEqual([]);
    expect(await rig.admin.describe(rig.topic, GROUP)).toHaveLength(1);
  });

  it('of an active group go dead members, and consumers that are silent and have nothing in hand', async () => {
    const { rig } = await withGroup(10);
    await using _ = rig;
    await rig.join('live', 60_000);
    await rig.join('dead', -HOUR_MS);
    await rig.join('late', -1000);
    expect(await found(rig)).toEqual([['member', 'dead', undefined]]);
    const [member] = await rig.admin.garbage([rig.topic], DAY_MS);
    // it lives again
    await rig.join('dead', 1000);
    expect(await rig.admin.collect([member!])).toEqual([]);
    await rig.join('dead', -HOUR_MS);
    expect(await rig.admin.collect([member!])).toEqual([member]);
    expect(await redis.zrange(rig.members.members, '0', '-1')).not.toContain('dead');
    expect(await redis.hkeys(rig.members.details)).not.toContain('dead');
  });

  it('a consumer is dropped only with empty hands, and once it is silent', async () => {
    const { rig } = await withGroup(10);
    await using _ = rig;
    await rig.join('live', 60_000);
    const { stream } = rig.partition();
    for (const name of ['idle', 'busy', 'fresh']) await redis.xgroup('CREATECONSUMER', stream, GROUP, name);
    await rig.read(1, 'busy');
    const soon = new GroupAdmin(rig.log, 300);
    await eventually(async () => expect(await soon.garbage([rig.topic], DAY_MS)).toHaveLength(2));
    const garbage = await soon.garbage([rig.topic], DAY_MS);
    expect(garbage.map(({ what, name, partition }) => [what, name, partition])).toEqual([
      ['consumer', 'fresh', 0],
      ['consumer', 'idle', 0],
    ]);
    // it is back, and takes something
    await rig.read(1, 'fresh');
    expect((await soon.collect(garbage)).map(({ name }) => name)).toEqual(['idle']);
    const left = (await rig.admin.members(rig.topic, GROUP)).map(({ member, pending }) => [member, pending]);
    expect(left).toEqual([
      ['live', 0],
      ['busy', 1],
      ['fresh', 1],
    ]);
  });
});

describe('trim', () => {
  it('cuts up to and with a position, whoever has not read it, and keeps the accounts', async () => {
    const { rig, ids } = await withGroup(200);
    await using _ = rig;
    await rig.read(10);
    const [before] = await rig.log.describe(rig.topic);
    const { epoch } = before!;
    const cuts = await planTrim(rig.log, rig.topic, { epoch, partition: 0, ms: 1, offset: 77 });
    expect(cuts.map(({ row }) => row)).toEqual([
      { topic: rig.topic, partition: 0, first: 1, newFirst: 78, entries: 77, unread: [{ group: GROUP, entries: 67 }] },
    ]);
    expect(await redis.xlen(rig.partition().stream)).toBe(200);
    for (const cut of cuts) await trimPartition(rig.log, cut);
    const left = (await redis.xrange(rig.partition().stream, '-', '+')).map(([id]) => id);
    expect(left).toEqual(ids.slice(77));
    const [after] = await rig.log.describe(rig.topic);
    expect(after).toMatchObject({ first: 78, entries: 123, epoch });
    expect(await bytesIn(rig)).toBe(after?.bytes);
    expect(await redis.hget(rig.partition().meta, `unread:${GROUP}`)).toBe('67');
    // and it goes on
    await rig.append(1);
    expect(await bytesIn(rig)).toBe((await rig.log.describe(rig.topic))[0]?.bytes);
  });

  it('by time, and everything', async () => {
    const rig = await startRig();
    await using _ = rig;
    await rig.append(5);
    const time = (await rig.log.now()) + 1;
    await eventually(async () => (await rig.log.now()) > time);
    await rig.append(5);
    const cut = async (to: Parameters<typeof planTrim>[2]) => {
      for (const each of await planTrim(rig.log, rig.topic, to)) await trimPartition(rig.log, each);
      return (await rig.log.describe(rig.topic)).map(({ first, entries, bytes }) => [first, entries, bytes > 0]);
    };
    expect(await cut({ ms: time })).toEqual([[6, 5, true]]);
    expect(await cut('latest')).toEqual([[11, 0, false]]);
    expect(offsets(await rig.append(1))).toEqual([11]);
    const other = planTrim(rig.log, rig.topic, { epoch: 'another', partition: 0, ms: 1, offset: 1 });
    await expect(other).rejects.toMatchObject({ code: 'bad_request' });
  });

  /** As the log counts them, from what is there. */
  async function bytesIn(rig: Rig): Promise<number> {
    const entries = await redis.xrangeBuffer(rig.partition().stream, '-', '+');
    return entries.reduce((sum, [, fields]) => sum + fields[1]!.length + 40, 0);
  }
});

describe('on Redis Cluster', () => {
  it('all keys of a partition are in one slot, and all of the members’ in one', async () => {
    await using cluster = await startRedis({ aof: 'off', config: { 'cluster-enabled': 'yes' } });
    await using client = adminOf(cluster.url);
    const slots = async (keys: object): Promise<number> => {
      const names = Object.values(keys).flat() as string[];
      const found = await Promise.all(names.map((key) => client.call('CLUSTER', 'KEYSLOT', key)));
      return new Set(found).size;
    };
    for (const [topic, group] of [
      ['events', 'billing'],
      ['a{b}c', 'x}{y'],
      ['täglich', '{}'],
    ] as const) {
      for (const partition of [0, 1, 17])
        expect(await slots({ ...KEYS.partition(topic, partition), ...KEYS.group(topic, partition, group) })).toBe(1);
      expect(await slots(KEYS.groupMembers(topic, group))).toBe(1);
    }
    // and not all of all
    expect(await slots([KEYS.partition('events', 0).stream, KEYS.partition('events', 1).stream])).toBe(2);
  });
});
