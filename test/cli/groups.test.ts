import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { LogAccess } from '../../src/log/index.js';
import { Keys } from '../../src/redis/keys.js';
import { encodeEntry } from '../../src/wire/envelope.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { adminOf } from '../log/rig.js';
import { type Run, run as runWith, start } from './run.js';
import { runHere } from './run-here.js';

const KEYS = new Keys('hf:');
const GROUP = 'app:billing';

let server: RedisProcess;
let redis: Redis & AsyncDisposable;
let log: LogAccess;

beforeAll(async () => {
  server = await startRedis();
  redis = adminOf(server.url);
  log = new LogAccess(server.url, KEYS, { maxEntries: 100_000, maxBytes: 100_000_000, idWindowMs: 1000 });
  await log.whenUp(5000);
});
afterAll(async () => {
  await log?.[Symbol.asyncDispose]();
  redis?.disconnect();
  await server?.stop();
});

/** Two partitions: 5 entries that the group was given 3 of, and none. */
beforeEach(async () => {
  await redis.flushall();
  await log.makeTopic('events', 2);
  await append(5);
  await redis.xgroup('CREATE', stream(0), GROUP, '0');
  await redis.xreadgroup('GROUP', GROUP, 'm-1', 'COUNT', 3, 'STREAMS', stream(0), '>');
});

const run = (...args: string[]): Promise<Run> => runWith(args, { REDIS_URL: server.url });
const here = (...args: string[]): Promise<Run> => runHere(args, { REDIS_URL: server.url });
const stream = (partition: number): string => KEYS.partition('events', partition).stream;

async function append(count: number, topic = 'events', partition = 0): Promise<void> {
  for (let n = 1; n <= count; n++) {
    const header = { rooms: ['default/news'], publisher: 'default/user%3Aann', id: `id-${n}` };
    const body = encodeEntry(header, JSON.stringify(['hello', { n }, { room: 'news', id: `id-${n}`, at: 1 }]));
    await log.append(topic, partition, { body });
  }
}

async function joins(member: string, leaseMs: number): Promise<void> {
  const { members, details } = KEYS.groupMembers('events', 'billing');
  const now = await log.now();
  await redis.zadd(members, now + leaseMs, member);
  const said = { joinedAt: now, host: 'box', pid: 42, mode: 'shared', partitions: [] };
  await redis.hset(details, member, JSON.stringify(said));
}

async function bury(count: number): Promise<void> {
  const { dead } = KEYS.group('events', 0, 'billing');
  const entries = await redis.xrange(stream(0), '-', '+');
  const history = JSON.stringify([
    { at: 1_795_000_000_000, member: 'm-1', reason: 'timeout' },
    { at: 1_795_000_001_000, member: 'm-2', reason: 'error', error: 'no such\naccount' },
  ]);
  for (let n = 0; n < count; n++) {
    const [id, fields] = entries[n % entries.length] as [string, string[]];
    await redis.xadd(dead, `1795000002000-${n}`, 'id', id, 'n', 5, 'r', 'error', 'h', history, ...fields);
  }
}

/** What is another at each run. Columns stay where they are. */
function masked(text: string): string {
  return text
    .replaceAll(/[\w-]{6,16}:(\d+):\d{13}-(\d+)/g, 'EPOCH:$1:MS-$2')
    .replaceAll(/[\w-]{6,16}:(\d+):0-(\d+)/g, 'EPOCH:$1:0-$2')
    .replaceAll(/("oldestPendingMs": )\d+/g, '$1AGE')
    .replaceAll(/("(?:leaseUntil|joinedAt|silentMs)": )\d+/g, '$1TIME')
    .replaceAll(/\b\d+(ms|s)\b/g, 'AGE')
    .replaceAll(/ {2,}/g, '  ')
    .replaceAll(/ +$/gm, '');
}

/** What it says where, and how it ends. */
function said({ code, out, err }: Run): string {
  return masked(`${out}${err === '' ? '' : `--- stderr\n${err}`}--- exit ${code}\n`);
}

/** Each line's cells stand in columns. */
function expectColumns(out: string): void {
  const starts = (line: string): number[] =>
    [...line.matchAll(/(?:^| {2,})(?=\S)/g)].map(({ index, 0: gap }) => index + gap.length);
  const [head = '', ...rows] = out.trimEnd().split('\n');
  for (const row of rows) for (const start of starts(row)) expect(starts(head)).toContain(start);
}

describe('groups', () => {
  it('list', async () => {
    await joins('m-1', 60_000);
    const shown = await run('groups', 'list');
    expectColumns(shown.out);
    expect(said(shown)).toMatchInlineSnapshot(`
      "GROUP  TOPIC  STATE  #MEMBERS
      app:billing  events  active  1
      --- exit 0
      "
    `);
    expect(said(await here('groups', 'list', '-o', 'json'))).toMatchInlineSnapshot(`
      "[
        {
        "group": "app:billing",
        "topic": "events",
        "state": "active",
        "members": 1
        }
      ]
      --- exit 0
      "
    `);
  });

  it('describe', async () => {
    await bury(2);
    const shown = await run('groups', 'describe', 'billing');
    expectColumns(shown.out);
    expect(said(shown)).toMatchInlineSnapshot(`
      "GROUP  TOPIC  PARTITION  CURRENT-POSITION  LOG-END-POSITION  LAG  PENDING  OLDEST-PENDING  DEAD-LETTERS  CONSUMER
      app:billing  events  0  EPOCH:0:MS-3  EPOCH:0:MS-5  2  3  AGE  2  -
      --- exit 0
      "
    `);
    expect((await here('groups', 'describe', GROUP)).out.split('\n')[0]).toBe(shown.out.split('\n')[0]);
    expect(said(await here('groups', 'describe', 'billing', '-o', 'json'))).toMatchInlineSnapshot(`
      "[
        {
        "group": "app:billing",
        "topic": "events",
        "partition": 0,
        "logEndPosition": "EPOCH:0:MS-5",
        "members": 0,
        "currentPosition": "EPOCH:0:MS-3",
        "lag": 2,
        "pending": 3,
        "oldestPendingMs": AGE,
        "deadLetters": 2,
        "redriven": 0
        }
      ]
      --- exit 0
      "
    `);
  });

  it('describe --members', async () => {
    await joins('m-1', 60_000);
    await joins('m-2', -1000);
    const shown = await here('groups', 'describe', 'billing', '--members');
    expectColumns(shown.out);
    expect(said(shown)).toMatchInlineSnapshot(`
      "GROUP  TOPIC  CONSUMER  HOST  PID  STATE  MODE  PARTITIONS  PENDING
      app:billing  events  m-1  box  42  live  shared  -  3
      app:billing  events  m-2  box  42  dead  shared  -  0
      --- exit 0
      "
    `);
    expect(said(await here('groups', 'describe', 'billing', '--members', '-o', 'json'))).toMatchInlineSnapshot(`
      "[
        {
        "group": "app:billing",
        "topic": "events",
        "member": "m-1",
        "state": "live",
        "host": "box",
        "pid": 42,
        "mode": "shared",
        "joinedAt": TIME,
        "leaseUntil": TIME,
        "pending": 3
        },
        {
        "group": "app:billing",
        "topic": "events",
        "member": "m-2",
        "state": "dead",
        "host": "box",
        "pid": 42,
        "mode": "shared",
        "joinedAt": TIME,
        "leaseUntil": TIME,
        "pending": 0
        }
      ]
      --- exit 0
      "
    `);
    expect(said(await here('groups', 'describe', '--members'))).toMatchInlineSnapshot(`
      "--- stderr
      holdfast: --members: wants the name of a group
      --- exit 1
      "
    `);
  });

  it('reset-offsets says what it would do, and does it with --execute', async () => {
    const dry = await run('groups', 'reset-offsets', 'billing', '--to-earliest');
    expectColumns(dry.out);
    expect(said(dry)).toMatchInlineSnapshot(`
      "GROUP  TOPIC  PARTITION  CURRENT-POSITION  NEW-POSITION  NEW-LAG  NOTE
      app:billing  events  0  EPOCH:0:MS-3  EPOCH:0:0-0  5  -
      app:billing  events  1  -  :1:0-0  0  new
      --- stderr
      holdfast: dry run: with --execute it is done
      --- exit 0
      "
    `);
    const place = async () => JSON.parse((await here('groups', 'describe', 'billing', '-o', 'json')).out)[0].lag;
    expect(await place()).toBe(2);
    expect(said(await run('groups', 'reset-offsets', 'billing', '--to-earliest', '--execute'))).toMatchInlineSnapshot(`
      "GROUP  TOPIC  PARTITION  CURRENT-POSITION  NEW-POSITION  NEW-LAG  NOTE
      app:billing  events  0  EPOCH:0:MS-3  EPOCH:0:0-0  5  -
      app:billing  events  1  -  :1:0-0  0  new
      --- exit 0
      "
    `);
    expect(await place()).toBe(5);
    expect(
      said(await here('groups', 'reset-offsets', 'billing', '--shift-by', '-9', '-o', 'json')),
    ).toMatchInlineSnapshot(`
      "[
        {
        "group": "app:billing",
        "topic": "events",
        "partition": 0,
        "currentPosition": "EPOCH:0:0-0",
        "newPosition": "EPOCH:0:0-0",
        "lag": 5,
        "clamped": "trimmed"
        },
        {
        "group": "app:billing",
        "topic": "events",
        "partition": 1,
        "currentPosition": ":1:0-0",
        "newPosition": ":1:0-0",
        "lag": 0,
        "clamped": "trimmed"
        }
      ]
      --- stderr
      holdfast: dry run: with --execute it is done
      --- exit 0
      "
    `);
    expect(said(await here('groups', 'reset-offsets', 'billing', '--to-position', '99'))).toMatchInlineSnapshot(`
      "GROUP  TOPIC  PARTITION  CURRENT-POSITION  NEW-POSITION  NEW-LAG  NOTE
      app:billing  events  0  EPOCH:0:0-0  EPOCH:0:MS-5  0  the log ends there
      app:billing  events  1  :1:0-0  :1:0-0  0  the log ends there
      --- stderr
      holdfast: dry run: with --execute it is done
      --- exit 0
      "
    `);
  });

  it.each([
    [['--to-latest'], [0, 0]],
    [
      ['--to-datetime', '2020-01-01'],
      [5, 0],
    ],
    [
      ['--to-datetime', '2120-01-01T00:00:00Z'],
      [0, 0],
    ],
    [
      ['--by-duration', 'PT1H'],
      [5, 0],
    ],
    [
      ['--by-duration', '1h'],
      [5, 0],
    ],
    [
      ['--by-duration', 'P0D'],
      [0, 0],
    ],
    [
      ['--to-position', '4'],
      [1, 0],
    ],
    [
      ['--to-earliest', '--dry-run'],
      [5, 0],
    ],
  ])('reset-offsets %j', async (args, lags) => {
    await here('groups', 'reset-offsets', 'billing', '--to-latest', '--execute');
    const { out, code } = await here('groups', 'reset-offsets', 'billing', ...args, '-o', 'json');
    expect([JSON.parse(out).map(({ lag }: { lag: number }) => lag), code]).toEqual([lags, 0]);
  });

  it('reset-offsets to a position that a program has, and from there on', async () => {
    const { position } = JSON.parse((await here('replay', '--to-file', '-')).out.split('\n')[1] as string);
    const args = ['--to-position', position, '--execute', '-o', 'json'];
    const [row, ...more] = JSON.parse((await here('groups', 'reset-offsets', 'billing', ...args)).out);
    expect([row.newPosition, row.lag, more]).toEqual([position, 3, []]);
  });

  it('an active group is neither reset nor deleted: who reads for it is named', async () => {
    await joins('m-1', 60_000);
    await joins('m-2', 60_000);
    expect(said(await here('groups', 'reset-offsets', 'billing', '--to-latest', '--execute'))).toMatchInlineSnapshot(`
      "--- stderr
      holdfast: app:billing is active: stop m-1, m-2 first
      --- exit 1
      "
    `);
    expect(said(await here('groups', 'reset-offsets', 'billing', '--to-latest'))).toMatchInlineSnapshot(`
      "GROUP  TOPIC  PARTITION  CURRENT-POSITION  NEW-POSITION  NEW-LAG  NOTE
      app:billing  events  0  EPOCH:0:MS-3  EPOCH:0:MS-5  0  -
      app:billing  events  1  -  :1:0-0  0  new
      --- stderr
      holdfast: dry run: with --execute it is done, once the group is idle (now it has m-1, m-2)
      --- exit 0
      "
    `);
    expect(said(await here('groups', 'delete', 'billing', '--yes'))).toMatchInlineSnapshot(`
      "--- stderr
      holdfast: app:billing is active: stop m-1, m-2 first
      --- exit 1
      "
    `);
  });

  it('delete says what would go, and deletes with --yes', async () => {
    await bury(2);
    expect(said(await run('groups', 'delete', 'billing'))).toMatchInlineSnapshot(`
      "--- stderr
      holdfast: this would delete app:billing of topic events, with 3 pending entries and 2 dead letters, for good; with --yes it is done
      --- exit 1
      "
    `);
    expect(said(await here('groups', 'describe', 'billing'))).toMatch(/exit 0/);
    expect(said(await run('groups', 'delete', 'billing', '--yes'))).toMatchInlineSnapshot(`
      "DELETED  TOPIC  PENDING  DEAD-LETTERS
      app:billing  events  3  2
      --- exit 0
      "
    `);
    expect(said(await here('groups', 'delete', 'billing', '--yes'))).toMatchInlineSnapshot(`
      "--- stderr
      holdfast: no group "billing": holdfast groups list
      --- exit 1
      "
    `);
  });

  it('gc says what would go, and removes it with --yes', async () => {
    const gc = (...args: string[]) => here('groups', 'gc', '--silent-for', '0', ...args);
    // nobody has been away for so long
    expect(said(await here('groups', 'gc'))).toMatchInlineSnapshot(`
      "WHAT  GROUP  TOPIC  PARTITION  CONSUMER  SILENT-FOR
      --- exit 0
      "
    `);
    await eventually(async () => expect((await gc()).out).toMatch(/billing/));
    const shown = await gc();
    expectColumns(shown.out);
    expect(said(shown)).toMatchInlineSnapshot(`
      "WHAT  GROUP  TOPIC  PARTITION  CONSUMER  SILENT-FOR
      group  app:billing  events  -  -  AGE
      --- stderr
      holdfast: this would remove these, for good; with --yes it is done
      --- exit 1
      "
    `);
    expect(said(await gc('-o', 'json', '--yes'))).toMatchInlineSnapshot(`
      "[
        {
        "group": "app:billing",
        "topic": "events",
        "what": "group",
        "silentMs": TIME
        }
      ]
      --- exit 0
      "
    `);
    expect(said(await here('groups', 'list'))).toMatchInlineSnapshot(`
      "GROUP  TOPIC  STATE  #MEMBERS
      --- exit 0
      "
    `);
    expect(said(await gc('--yes'))).toMatchInlineSnapshot(`
      "WHAT  GROUP  TOPIC  PARTITION  CONSUMER  SILENT-FOR
      --- exit 0
      "
    `);
  });
});

describe('dlq', () => {
  beforeEach(() => bury(3));

  it('list', async () => {
    const shown = await run('dlq', 'list', 'billing');
    expectColumns(shown.out);
    expect(said(shown)).toMatchInlineSnapshot(`
      "ID  POSITION  DELIVERIES  REASON  AT  EVENT  ERROR
      0:1795000002000-0  EPOCH:0:MS-1  5  error  2026-11-18T11:06:42.000Z  hello  no such account
      0:1795000002000-1  EPOCH:0:MS-2  5  error  2026-11-18T11:06:42.000Z  hello  no such account
      0:1795000002000-2  EPOCH:0:MS-3  5  error  2026-11-18T11:06:42.000Z  hello  no such account
      --- exit 0
      "
    `);
    expect(said(await here('dlq', 'list', 'billing', '-n', '1', '-o', 'json'))).toMatchInlineSnapshot(`
      "[
        {
        "id": "0:1795000002000-0",
        "topic": "events",
        "partition": 0,
        "position": "EPOCH:0:MS-1",
        "deliveries": 5,
        "reason": "error",
        "at": "2026-11-18T11:06:42.000Z",
        "event": "hello",
        "error": "no such\\naccount"
        }
      ]
      --- stderr
      holdfast: 2 more: -n 3
      --- exit 0
      "
    `);
    expect(said(await here('dlq', 'list'))).toMatchInlineSnapshot(`
      "GROUP  TOPIC  DEAD-LETTERS  REDRIVEN  DROPPED
      app:billing  events  3  0  0
      --- exit 0
      "
    `);
  });

  it('show', async () => {
    expect(said(await run('dlq', 'show', 'billing', '0:1795000002000-1'))).toMatchInlineSnapshot(`
      "id:  0:1795000002000-1
      topic:  events
      position:  EPOCH:0:MS-2
      deliveries: 5
      reason:  error
      at:  2026-11-18T11:06:42.000Z
      event:  hello
      data:  {"n":2}
      tenant:  default
      rooms:  news
      publisher:  user:ann
      eventId:  id-2

      AT  CONSUMER  REASON  ERROR
      2026-11-18T11:06:40.000Z  m-1  timeout  -
      2026-11-18T11:06:41.000Z  m-2  error  no such account
      --- exit 0
      "
    `);
    expect(said(await here('dlq', 'show', 'billing', '0:1795000002000-1', '-o', 'json'))).toMatchInlineSnapshot(`
      "{
        "id": "0:1795000002000-1",
        "topic": "events",
        "partition": 0,
        "position": "EPOCH:0:MS-2",
        "deliveries": 5,
        "reason": "error",
        "at": "2026-11-18T11:06:42.000Z",
        "event": "hello",
        "data": {
        "n": 2
        },
        "tenant": "default",
        "rooms": [
        "news"
        ],
        "publisher": "user:ann",
        "eventId": "id-2",
        "failures": [
        {
        "at": 1795000000000,
        "member": "m-1",
        "reason": "timeout"
        },
        {
        "at": 1795000001000,
        "member": "m-2",
        "reason": "error",
        "error": "no such\\naccount"
        }
        ]
      }
      --- exit 0
      "
    `);
    expect(said(await here('dlq', 'show', 'billing', 'first'))).toMatchInlineSnapshot(`
      "--- stderr
      holdfast: no dead letter first: holdfast dlq list billing
      --- exit 1
      "
    `);
  });

  it('redrive', async () => {
    const ids = ['0:1795000002000-0', '0:1795000002000-1'];
    expect(said(await run('dlq', 'redrive', 'billing', ids[0] as string))).toMatchInlineSnapshot(`
      "1 redriven
      --- exit 0
      "
    `);
    // one of them is back already
    expect(said(await here('dlq', 'redrive', 'billing', ...ids))).toMatchInlineSnapshot(`
      "1 redriven
      --- stderr
      holdfast: no dead letter 0:1795000002000-0: holdfast dlq list billing
      --- exit 1
      "
    `);
    expect(said(await here('dlq', 'redrive', 'billing', '--all', '-o', 'json'))).toMatchInlineSnapshot(`
      "{"redriven":["0:1795000002000-2"]}
      --- exit 0
      "
    `);
    expect(said(await here('dlq', 'list'))).toMatchInlineSnapshot(`
      "GROUP  TOPIC  DEAD-LETTERS  REDRIVEN  DROPPED
      app:billing  events  0  3  0
      --- exit 0
      "
    `);
    expect(said(await here('dlq', 'redrive', 'billing'))).toMatchInlineSnapshot(`
      "--- stderr
      holdfast: wants ids of dead letters, or --all
      --- exit 1
      "
    `);
  });

  it('drop says how many would go, and drops with --yes', async () => {
    expect(said(await here('dlq', 'drop', 'billing', '--all'))).toMatchInlineSnapshot(`
      "--- stderr
      holdfast: this would delete 3 dead letters of group "billing", for good; with --yes it is done
      --- exit 1
      "
    `);
    expect(said(await here('dlq', 'drop', 'billing', '0:1795000002000-1', '--yes'))).toMatchInlineSnapshot(`
      "1 dropped
      --- exit 0
      "
    `);
    expect(said(await run('dlq', 'drop', 'billing', '--all', '--yes'))).toMatchInlineSnapshot(`
      "2 dropped
      --- exit 0
      "
    `);
  });

  it('a redrive that is killed on its way loses and doubles nothing, and may be begun again', async () => {
    const count = 20_000;
    await buryMarked(count);
    const { dead, redriven } = KEYS.group('events', 0, 'billing');
    // far away, so that it takes its time
    await using proxy = await startTcpProxy(server.port);
    proxy.delay(5);
    const child = start(['dlq', 'redrive', 'billing', '--all'], { REDIS_URL: `redis://127.0.0.1:${proxy.port}` });
    await eventually(async () => (await redis.xlen(redriven)) > 100, { withinMs: 20_000 });
    child.kill('SIGKILL');
    await eventually(() => child.signalCode !== null);
    const marks = async (key: string) =>
      (await redis.xrange(key, '-', '+')).map(([, fields]) => fields.at(-1) as string);
    const [left, back] = [await marks(dead), await marks(redriven)];
    // killed in the middle, or this shows nothing
    expect(left.length).toBeGreaterThan(0);
    expect(back.length).toBeGreaterThan(100);
    const whole = Array.from({ length: count }, (_, n) => String(n)).sort();
    expect([...left, ...back].sort()).toEqual(whole);
    expect((await run('dlq', 'redrive', 'billing', '--all')).out).toBe(`${left.length} redriven\n`);
    expect((await marks(redriven)).sort()).toEqual(whole);
    expect(await redis.xlen(dead)).toBe(0);
  });

  /** Told apart by their last field. */
  async function buryMarked(count: number): Promise<void> {
    const { dead } = KEYS.group('events', 0, 'billing');
    await redis.del(dead);
    const pipeline = redis.pipeline();
    for (let n = 0; n < count; n++) pipeline.xadd(dead, '*', 'id', '1-1', 'n', 5, 'r', 'error', 'h', '[]', 'a', n);
    await pipeline.exec();
  }
});

describe('topics trim', () => {
  it('says what would go and who has not read it, and trims with --yes', async () => {
    const shown = await here('topics', 'trim', 'events', '--to', 'latest');
    expectColumns(shown.out);
    expect(said(shown)).toMatchInlineSnapshot(`
      "TOPIC  PARTITION  FIRST-OFFSET  NEW-FIRST-OFFSET  ENTRIES  UNREAD-BY
      events  0  1  6  5  app:billing (2)
      events  1  1  1  0  -
      --- stderr
      holdfast: this would delete 5 entries of topic events, for good; with --yes it is done
      --- exit 1
      "
    `);
    expect(said(await run('topics', 'trim', 'events', '--to', 'latest', '--yes', '-o', 'json'))).toMatchInlineSnapshot(`
      "[
        {
        "topic": "events",
        "partition": 0,
        "first": 1,
        "newFirst": 6,
        "entries": 5,
        "unread": [
        {
        "group": "app:billing",
        "entries": 2
        }
        ]
        },
        {
        "topic": "events",
        "partition": 1,
        "first": 1,
        "newFirst": 1,
        "entries": 0,
        "unread": []
        }
      ]
      --- exit 0
      "
    `);
    expect(await redis.xlen(stream(0))).toBe(0);
    expect(said(await here('topics', 'trim', 'events', '--to', '1h'))).toMatchInlineSnapshot(`
      "TOPIC  PARTITION  FIRST-OFFSET  NEW-FIRST-OFFSET  ENTRIES  UNREAD-BY
      events  0  6  6  0  -
      events  1  1  1  0  -
      --- exit 0
      "
    `);
    expect(said(await here('topics', 'trim', 'events', '--to', 'soon', '--yes'))).toMatchInlineSnapshot(`
      "--- stderr
      holdfast: --to: wants a position, earliest, latest, a time or an age, got "soon"
      --- exit 1
      "
    `);
  });
});

describe('tail', () => {
  it('--group begins where it stands, and leaves it there', async () => {
    // the tenant's partition is the group's
    const partition = await log.partitionOf('events', 'default');
    await append(3, 'events', partition);
    await here('groups', 'reset-offsets', 'billing', '--to-latest', '--execute');
    await append(2, 'events', partition);
    const before = (await here('groups', 'describe', 'billing')).out;
    const shown = await here('tail', '--group', 'billing', '--no-follow', '-o', 'json');
    expect(
      shown.out
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line).data),
    ).toEqual([{ n: 1 }, { n: 2 }]);
    expect((await here('groups', 'describe', 'billing')).out).toBe(before);
    expect(said(await here('tail', '--group', 'nope'))).toMatchInlineSnapshot(`
      "--- stderr
      holdfast: no group "nope": holdfast groups list
      --- exit 1
      "
    `);
    expect(said(await here('tail', '--group', 'billing', '--from', 'earliest'))).toMatchInlineSnapshot(`
      "--- stderr
      error: option '--group <name>' cannot be used with option '--from <where>'
      (holdfast --help lists the commands, holdfast <command> --help what each takes)
      --- exit 1
      "
    `);
  });

  it('of a back end’s topic shows all partitions and tenants, also what went to no room', async () => {
    await log.makeTopic('orders', 2);
    await append(1, 'orders', 0);
    const header = { rooms: [], publisher: 'acme/app%3Ashop', id: 'x' };
    await log.append('orders', 1, { body: encodeEntry(header, '["paid",{"n":7}]') });
    const tail = (...args: string[]) => here('tail', '--topic', 'orders', '--from', 'earliest', '--no-follow', ...args);
    const lines = (await tail()).out.trim().split('\n');
    expect(lines.map((line) => line.split('  ').slice(2)).sort()).toEqual([
      ['-', 'paid', '{"n":7}'],
      ['news', 'hello', '{"n":1}'],
    ]);
    expect((await tail('-t', 'acme')).out).toMatch(/^\S+ {2}\S+ {2}- {2}paid/);
    expect((await tail('--room', 'news')).out).toMatch(/^\S+ {2}\S+ {2}news {2}hello {2}\{"n":1\}\n$/);
    expect((await tail('-n', '1')).out.split('\n')).toHaveLength(2);
  });
});

describe('replay', () => {
  const dataIn = async (topic: string): Promise<unknown[]> =>
    (await here('tail', '--topic', topic, '--from', 'earliest', '--no-follow', '-o', 'json')).out
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line).data.n);

  it('copies a range to a topic, which is made', async () => {
    expect(said(await run('replay', '--to-topic', 'copy'))).toMatchInlineSnapshot(`
      "5 entries copied to copy
      --- exit 0
      "
    `);
    expect(await dataIn('copy')).toEqual([1, 2, 3, 4, 5]);
    expect((await here('topics', 'list')).out).toMatch(/^copy {2,}2$/m);
    const lines = (await here('replay', '--to-file', '-')).out.trim().split('\n');
    const positions = lines.map((line) => JSON.parse(line).position as string);
    expect(positions).toHaveLength(5);
    const range = ['--from', positions[1] as string, '--until', positions[3] as string];
    expect(said(await here('replay', ...range, '--to-topic', 'part', '-o', 'json'))).toMatchInlineSnapshot(`
      "{"copied":2,"lost":0}
      --- exit 0
      "
    `);
    expect(await dataIn('part')).toEqual([3, 4]);
    // into itself it has an end too
    expect((await here('replay', '--to-topic', 'events')).out).toBe('5 entries copied to events\n');
    expect(await redis.xlen(stream(0))).toBe(10);
  });

  it('to a file: a line of JSON each, and never over one that is there', async ({ onTestFinished }) => {
    const dir = await mkdtemp(join(tmpdir(), 'holdfast-replay-'));
    onTestFinished(() => rm(dir, { recursive: true, force: true }));
    const file = join(dir, 'events.jsonl');
    expect((await run('replay', '--to-file', file, '--from', '1h')).out).toBe(`5 entries copied to ${file}\n`);
    const text = await readFile(file, 'utf8');
    expect(masked(text.split('\n')[0]!.replace(/"at":"[^"]+"/, '"at":"TIME"'))).toMatchInlineSnapshot(
      `"{"position":"EPOCH:0:MS-1","at":"TIME","tenant":"default","publisher":"user:ann","id":"id-1","rooms":["news"],"event":"hello","data":{"n":1}}"`,
    );
    expect(text.split('\n')).toHaveLength(6);
    const again = await run('replay', '--to-file', file);
    expect([again.code, again.out, again.err.replaceAll(file, 'FILE')]).toEqual([
      1,
      '',
      "holdfast: --to-file: EEXIST: file already exists, open 'FILE'\n",
    ]);
    expect(await readFile(file, 'utf8')).toBe(text);
  });

  it('says how many entries of the range are gone', async () => {
    const [, second] = await redis.xrange(stream(0), '-', '+');
    await redis.xdel(stream(0), second?.[0] as string);
    expect((await here('replay', '--to-topic', 'copy')).out).toBe('4 entries copied to copy, 1 are gone\n');
  });

  it('wants to know where to', async () => {
    expect(said(await here('replay'))).toMatchInlineSnapshot(`
      "--- stderr
      holdfast: wants one of --to-topic and --to-file
      --- exit 1
      "
    `);
    expect(said(await here('replay', '--to-topic', 'a', '--to-file', 'b'))).toMatchInlineSnapshot(`
      "--- stderr
      error: option '--to-file <path>' cannot be used with option '--to-topic <topic>'
      (holdfast --help lists the commands, holdfast <command> --help what each takes)
      --- exit 1
      "
    `);
  });
});

describe('what goes wrong is a line', () => {
  it.each([
    [['groups', 'describe', 'nope'], 1, 'holdfast: no group "nope": holdfast groups list'],
    [['groups', 'delete', 'nope', '--yes'], 1, 'holdfast: no group "nope": holdfast groups list'],
    [['dlq', 'list', 'nope'], 1, 'holdfast: no group "nope": holdfast groups list'],
    [['dlq', 'redrive', 'nope', '--all'], 1, 'holdfast: no group "nope": holdfast groups list'],
    [['dlq', 'list', '-t', 'nope'], 1, 'holdfast: no topic "nope" in this Redis: holdfast topics list'],
    [['topics', 'trim', 'nope', '--to', '1h'], 1, 'holdfast: no topic "nope" in this Redis: holdfast topics list'],
    [['replay', 'nope', '--to-file', '-'], 1, 'holdfast: no topic "nope" in this Redis: holdfast topics list'],
    [['groups', 'gc', '-t', 'nope'], 1, 'holdfast: no topic "nope" in this Redis: holdfast topics list'],
    [
      ['groups', 'reset-offsets', 'new', '--shift-by', '1'],
      1,
      'holdfast: there is nothing to shift by 1: the group has no place in partition 0',
    ],
    [
      ['groups', 'reset-offsets', 'pod:a', '--to-latest'],
      1,
      "holdfast: pod:a is a relay's own group: it can't be reset, and goes by itself when the relay is gone",
    ],
    [
      ['groups', 'reset-offsets', 'billing'],
      1,
      'holdfast: wants one of --to-earliest, --to-latest, --to-datetime, --by-duration, --shift-by and --to-position',
    ],
    [
      ['groups', 'reset-offsets', 'billing', '--to-latest', '--to-earliest'],
      1,
      'holdfast: wants one of --to-earliest, --to-latest, --to-datetime, --by-duration, --shift-by and --to-position',
    ],
    [
      ['groups', 'reset-offsets', 'billing', '--to-datetime', '10m'],
      1,
      'holdfast: --to-datetime: wants ISO 8601 or ms since 1970, got "10m"',
    ],
    [
      ['groups', 'reset-offsets', 'billing', '--by-duration', 'P1M'],
      1,
      'holdfast: --by-duration: wants a duration such as 15m or PT15M, got "P1M"',
    ],
    [
      ['groups', 'reset-offsets', 'billing', '--shift-by', '1.5'],
      1,
      'holdfast: --shift-by: wants a whole number, got "1.5"',
    ],
    [
      ['groups', 'reset-offsets', 'billing', '--to-position', 'here'],
      1,
      'holdfast: --to-position: wants a position or an offset, got "here"',
    ],
    [['dlq', 'list', 'billing', '-n', '0'], 1, 'holdfast: --count: wants a whole number above 0, got "0"'],
  ])('%j', async (args, code, complaint) => {
    const shown = await here(...args);
    expect([shown.code, shown.out, shown.err]).toEqual([code, '', `${complaint}\n`]);
  });

  it.each([
    [['groups', 'reset-offset', 'billing'], "error: unknown command 'reset-offset'\n(Did you mean reset-offsets?)"],
    [['dlq', 'redrve'], "error: unknown command 'redrve'\n(Did you mean redrive?)"],
    [
      ['groups', 'reset-offsets', 'billing', '--to-earlyest'],
      "error: unknown option '--to-earlyest'\n(Did you mean --to-earliest?)",
    ],
    [['topics', 'trim', 'events'], "error: required option '--to <where>' not specified"],
    [
      ['groups', 'reset-offsets', 'billing', '--to-latest', '--dry-run', '--execute'],
      "error: option '--dry-run' cannot be used with option '--execute'",
    ],
  ])('%j', async (args, complaint) => {
    const shown = await here(...args);
    expect([shown.code, shown.out]).toEqual([1, '']);
    expect(shown.err.startsWith(`${complaint}\n`)).toBe(true);
  });

  it.each([
    [['groups', 'reset-offsets', 'billing', '--to-latest', '--execute']],
    [['dlq', 'list']],
    [['topics', 'trim', 'events', '--to', '1h']],
    [['replay', '--to-topic', 'copy']],
  ])('%j without Redis', async (args) => {
    const { code, out, err } = await runHere([...args, '--redis-url', 'redis://127.0.0.1:1']);
    expect([code, out]).toEqual([2, '']);
    expect(err).toBe('holdfast: Redis at 127.0.0.1:1 cannot be reached: connect ECONNREFUSED 127.0.0.1:1\n');
  });
});

it('whose reader has read enough ends without a word', async () => {
  for (let n = 0; n < 300; n++) await redis.xgroup('CREATE', stream(0), `app:${'g'.repeat(100)}-${n}`, '0');
  await append(1500);
  for (const args of [
    ['groups', 'describe'],
    ['groups', 'list', '-o', 'json'],
    ['replay', '--to-file', '-'],
  ]) {
    const child = start(args, { REDIS_URL: server.url });
    const ended = new Promise((resolve) => child.once('exit', (code, signal) => resolve([code, signal])));
    let complaint = '';
    child.stderr!.on('data', (data) => {
      complaint += data;
    });
    child.stdout!.once('data', () => child.stdout!.destroy());
    expect([await ended, complaint], args.join(' ')).toEqual([[0, null], '']);
  }
});
