import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Pod, startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { type Run, run as runWith, start } from './run.js';
import { runHere } from './run-here.js';

let redis: RedisProcess;
let pod: Pod;
const POSITION = '[\\w-]{8}:\\d:\\d+-\\d+';

beforeAll(async () => {
  redis = await startRedis();
  pod = await startPod({ redisUrl: redis.url, name: 'pod-a', env: { HOLDFAST_PARTITIONS: '2' } });
});
afterAll(async () => {
  await pod?.stop();
  await redis?.stop();
});

/** By a process of its own: each command at least once. */
const run = (...args: string[]): Promise<Run> => runWith(args, { REDIS_URL: redis.url });
const here = (...args: string[]): Promise<Run> => runHere(args, { REDIS_URL: redis.url });

/** Each line's cells, and that they stand in columns. */
function tableOf(out: string): string[][] {
  const lines = out.trimEnd().split('\n');
  const cells = lines.map((line) => line.split(/ {2,}/));
  const starts = (line: string): number[] =>
    [...line.matchAll(/(?:^| {2,})(?=\S)/g)].map(({ index, 0: gap }) => index + gap.length);
  for (const line of lines) expect(starts(line)).toEqual(starts(lines[0] as string));
  return cells;
}

describe.concurrent('topics', () => {
  it('list', async () => {
    const { code, out, err } = await run('topics', 'list');
    expect({ code, err }).toEqual({ code: 0, err: '' });
    expect(tableOf(out)).toEqual([
      ['TOPIC', 'PARTITIONS'],
      ['events', '2'],
    ]);
    expect(JSON.parse((await here('topics', 'list', '-o', 'json')).out)).toEqual([{ topic: 'events', partitions: 2 }]);
  });

  it('describe has a row per partition', async () => {
    const { code, out } = await here('topics', 'describe');
    expect(code).toBe(0);
    const [head, ...rows] = tableOf(out);
    expect(head).toEqual(['TOPIC', 'PARTITION', 'ENTRIES', 'BYTES', 'FIRST-OFFSET', 'LOG-END-POSITION']);
    expect(rows.map((row) => row.slice(0, 2))).toEqual([
      ['events', '0'],
      ['events', '1'],
    ]);
    for (const row of rows) expect(row[5]).toMatch(new RegExp(`^${POSITION}$`));
    const json = JSON.parse((await here('topics', 'describe', 'events', '-o', 'json')).out);
    expect(json[1]).toMatchObject({ topic: 'events', partition: 1, entries: 0, logEnd: expect.any(String) });
  });
});

describe.concurrent('groups', () => {
  it('list and describe show the relay, in the columns of Kafka', async () => {
    await eventually(
      async () => {
        expect(tableOf((await here('groups', 'list')).out)).toEqual([
          ['GROUP', 'TOPIC', 'STATE', '#MEMBERS'],
          ['pod:pod-a', 'events', 'active', '1'],
        ]);
        const { code, out } = await here('groups', 'describe', 'pod:pod-a');
        expect(code).toBe(0);
        const [head, ...rows] = tableOf(out);
        expect(head).toEqual([
          'GROUP',
          'TOPIC',
          'PARTITION',
          'CURRENT-POSITION',
          'LOG-END-POSITION',
          'LAG',
          'PENDING',
          'OLDEST-PENDING',
          'DEAD-LETTERS',
          'CONSUMER',
        ]);
        for (const [index, row] of rows.entries()) {
          expect(row.slice(0, 3)).toEqual(['pod:pod-a', 'events', String(index)]);
          expect(row[3]).toMatch(new RegExp(`^${POSITION}$`));
          expect(row[5]).toBe('0');
        }
        expect(rows).toHaveLength(2);
      },
      { withinMs: 20_000 },
    );
    const json = JSON.parse((await run('groups', 'describe', '-o', 'json')).out);
    expect(json[0]).toMatchObject({ group: 'pod:pod-a', topic: 'events', partition: 0, lag: 0 });
  });
});

it.concurrent.each([
  [['topics', 'describe', 'nope'], 'no topic "nope" in this Redis: holdfast topics list'],
  [['groups', 'list', '-t', 'nope'], 'no topic "nope" in this Redis: holdfast topics list'],
  [['groups', 'describe', '-t', 'nope'], 'no topic "nope" in this Redis: holdfast topics list'],
  [['groups', 'describe', 'app:nope'], 'no group "app:nope": holdfast groups list'],
  [['tail', '--from', 'somewhere'], '--from: wants a position, earliest, latest, a time or an age, got "somewhere"'],
])('%j does not exist: one line', async (args, complaint) => {
  expect(await here(...args)).toMatchObject({ code: 1, out: '', err: `holdfast: ${complaint}\n` });
});

async function connectionsOf({ url }: RedisProcess): Promise<string> {
  const client = new Redis(url);
  try {
    return (await client.client('LIST')) as string;
  } finally {
    client.disconnect();
  }
}

// after what is asked of the empty log
describe('once something is published', () => {
  describe.concurrent('publish and tail', () => {
    it('what is published is tailed, of this tenant and room only', async () => {
      const first = await run('publish', 'news', 'hello', '{"a":1}');
      expect(first).toMatchObject({ code: 0, err: '' });
      expect(first.out).toMatch(new RegExp(`^${POSITION}\n$`));
      expect((await here('publish', 'sport', 'goal', 'not JSON', '-o', 'json')).out).toMatch(
        /^\{"position":"[^"]+"\}\n$/,
      );
      await here('publish', 'news', 'hello', '1', '-t', 'other');
      const { code, out } = await run('tail', '--from', 'earliest', '--no-follow');
      expect(code).toBe(0);
      expect(out).toMatch(
        new RegExp(
          `^\\d{4}-\\d\\d-\\d\\dT\\S+Z {2}${POSITION} {2}news {2}hello {2}{"a":1}\n\\S+ {2}\\S+ {2}sport {2}goal {2}"not JSON"\n$`,
        ),
      );
      expect((await here('tail', '--from', 'earliest', '--no-follow', '--room', 'sport')).out).toMatch(
        /^\S+ {2}\S+ {2}sport/,
      );
      const behind = await here('tail', '--from', first.out.trim(), '-n', '1', '-o', 'json');
      expect(JSON.parse(behind.out)).toMatchObject({ event: 'goal', data: 'not JSON', meta: { room: 'sport' } });
    });

    it('the same id is accepted once', async () => {
      const first = await here('publish', 'news', 'hello', '--id', '7', '-t', 'twice');
      const second = await here('publish', 'news', 'hello', '--id', '7', '-t', 'twice');
      expect(second).toMatchObject({ code: 0, out: `${first.out.trim()} (duplicate)\n` });
    });

    it('tail follows, and ends without a word when its reader has read enough', async ({ onTestFinished }) => {
      const child = start(['tail', '--room', 'pipe', '-t', 'pipes'], { REDIS_URL: redis.url });
      onTestFinished(() => void child.kill('SIGKILL'));
      const exit = once(child, 'exit');
      const complaint = text(child.stderr!);
      const line = once(child.stdout!, 'data');
      let isOver = false;
      onTestFinished(() => {
        isOver = true;
      });
      const publishing = (async () => {
        while (!isOver) await here('publish', 'pipe', 'tick', '-t', 'pipes');
      })();
      expect(String((await line)[0])).toMatch(/pipe {2}tick/);
      child.stdout!.destroy();
      expect(await exit).toEqual([0, null]);
      expect(await complaint).toBe('');
      isOver = true;
      await publishing;
    });
  });

  describe.concurrent('tail tells what is gone', () => {
    const tail = (...args: string[]): Promise<Run> => here('tail', '-t', 'holes', '--no-follow', ...args);
    const positions: string[] = [];
    const offsetOf = (position: string): number => Number(position.split('-').at(-1));
    const at = (index: number): string => positions[index] as string;

    beforeAll(async () => {
      for (const data of ['1', '2', '3', '4'])
        positions.push((await here('publish', 'news', 'hello', data, '-t', 'holes')).out.trim());
    });

    it('where entries were deleted, between what is there and at the end', async ({ onTestFinished }) => {
      const client = new Redis(redis.url);
      onTestFinished(() => client.disconnect());
      const partition = at(0).split(':').at(-2);
      const id = (index: number): string => at(index).split(':').at(-1) as string;
      await client.xdel(`hf:{events.${partition}}:s`, id(1), id(3));
      const text = (await tail('--from', at(0))).out.trim().split('\n');
      expect(text).toHaveLength(3);
      expect(text[0]).toMatch(new RegExp(`^-- gap: ${POSITION} … ${POSITION} \\(trimmed\\) --$`));
      expect(text[1]).toMatch(/news {2}hello {2}3$/);
      const json = (await tail('--from', at(0), '-o', 'json')).out
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line));
      for (const [index, gone] of [
        [0, 1],
        [2, 3],
      ] as const) {
        const { from, to, reason } = json[index].gap;
        expect([offsetOf(from), offsetOf(to), reason]).toEqual([offsetOf(at(gone)), offsetOf(at(gone)), 'trimmed']);
      }
    });

    it('of an epoch that has ended, and begins behind what survived', async () => {
      const from = at(0).replace(/^[^:]+/, 'gone-out');
      const lines = (await tail('--from', from)).out.split('\n');
      const start = at(0)
        .replace(/^[^:]+/, 'gone-out')
        .replace(/-\d+$/, '-1');
      expect(lines[0]).toBe(`-- gap: ${start} … ${from} (epoch) --`);
      expect(lines[1]).toMatch(/hello {2}1$/);
    });

    it('and a position that is none of this log is one line', async () => {
      const beyond = at(0).replace(/-\d+$/, '-999999');
      expect(await tail('--from', beyond)).toMatchObject({
        code: 1,
        err: `holdfast: --from: no position of this log, got ${beyond}\n`,
      });
      const other = at(0).replace(/:\d:/, ':9:');
      expect((await tail('--from', other)).err).toMatch(
        /^holdfast: --from: tenant "holes" is in partition \d, got \S+\n$/,
      );
    });
  });

  it.concurrent('a Redis that goes away under a command is one line', async ({ onTestFinished }) => {
    await using other = await startRedis();
    const relay = await startPod({ redisUrl: other.url, name: 'pod-b' });
    await relay.stop();
    const child = start(['tail', '--from', 'earliest'], { REDIS_URL: other.url });
    onTestFinished(() => void child.kill('SIGKILL'));
    const exit = once(child, 'exit');
    const complaint = text(child.stderr!);
    await eventually(async () => expect(await connectionsOf(other)).toMatch(/name=holdfast%3Acli /), {
      withinMs: 20_000,
    });
    await other.kill();
    expect(await exit).toEqual([2, null]);
    expect(await complaint).toMatch(/^holdfast: Redis at 127\.0\.0\.1:\d+ cannot be reached: [^\n]+\n$/);
  });

  it.concurrent('a password that is wrong is one line', async () => {
    await using locked = await startRedis({ config: { requirepass: 'right' } });
    const urls = [locked.url, locked.url.replace('//', '//:wrong@')];
    for (const { code, err } of await Promise.all(urls.map((url) => runWith(['topics', 'list', '--redis-url', url])))) {
      expect(code).toBeGreaterThan(0);
      expect(err).toMatch(/^holdfast: Redis [^\n]*(NOAUTH|WRONGPASS)[^\n]*\n$/);
    }
  });
});
