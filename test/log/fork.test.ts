import { expect, it } from 'vitest';
import { silentLogger, silentMeter } from '../../src/core/ports.js';
import { type Entry, EventLog, type LogGap } from '../../src/log/index.js';
import { Connection } from '../../src/redis/connect.js';
import { Keys } from '../../src/redis/keys.js';
import { encodeEntry } from '../../src/wire/envelope.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';

interface Seen {
  readonly log: EventLog;
  readonly ids: string[];
  readonly gaps: LogGap[];
}

async function startLog(port: number, pod: string): Promise<Seen> {
  const ids: string[] = [];
  const gaps: LogGap[] = [];
  const log = new EventLog({
    url: `redis://127.0.0.1:${port}`,
    keys: new Keys('hf:'),
    topic: 'events',
    partitions: undefined,
    pod,
    processId: `${pod}-process`,
    maxEntries: 10_000,
    maxBytes: 10_000_000,
    maxAgeMs: 3_600_000,
    trimMs: 60_000,
    reapMs: 600_000,
    keepMs: 60_000,
    idWindowMs: 120_000,
    handler: {
      onEntry: (entry: Entry) => ids.push(entry.header.id),
      onGap: (gap) => gaps.push(gap),
      onEpoch: () => {},
      onFenced: () => {},
    },
    logger: silentLogger,
    meter: silentMeter,
  });
  await log.start();
  log.beginReading();
  return { log, ids, gaps };
}

it('a log that forks after a fall-back tells every reader of the lost branch, and delivers the new one once', async () => {
  await using redis = await startRedis({ aof: 'off' });
  await using toX = await startTcpProxy(redis.port);
  await using toY = await startTcpProxy(redis.port);
  const x = await startLog(toX.port, 'x');
  const y = await startLog(toY.port, 'y');
  await using _x = x.log;
  await using _y = y.log;
  const append = async ({ log }: Seen, ...ids: string[]): Promise<void> => {
    for (const id of ids) await log.append(0, { body: encodeEntry({ rooms: ['r'], publisher: 'p', id }, '["e"]') });
  };
  const admin = new Connection({ url: redis.url, name: 'test' });
  try {
    await admin.whenUp(2000);
    await append(x, 'common-1', 'common-2');
    await eventually(() => y.ids.length === 2 && x.ids.length === 2, { what: 'both to read' });
    await admin.redis.save();
    // Y is cut off, X goes on: these will be forgotten
    await toY.refuse(true);
    toY.rst();
    await append(x, 'lost-3', 'lost-4', 'lost-5');
    await eventually(() => x.ids.length === 5, { what: 'X to read its own' });
    await toX.refuse(true);
    toX.rst();
    await redis.kill();
    await redis.start();
    // Y knows nothing of what was lost, and goes on at the same offsets
    await toY.refuse(false);
    await eventually(() => append(y, 'new-3').then(() => true), { what: 'Y to append', withinMs: 10_000 });
    await append(y, 'new-4');
    await toX.refuse(false);
    await eventually(() => append(x, 'new-5').then(() => true), { what: 'X to append', withinMs: 10_000 });
    await eventually(() => x.ids.at(-1) === 'new-5' && y.ids.at(-1) === 'new-5', {
      what: 'both to read the new branch',
    });
    await eventually(() => x.gaps.length > 0 && y.gaps.length > 0, { what: 'both to be told' });
  } finally {
    admin.close();
  }
  expect(x.ids).toEqual(['common-1', 'common-2', 'lost-3', 'lost-4', 'lost-5', 'new-3', 'new-4', 'new-5']);
  expect(y.ids).toEqual(['common-1', 'common-2', 'new-3', 'new-4', 'new-5']);
  for (const { gaps } of [x, y])
    expect(gaps).toMatchObject([{ reason: 'epoch', from: { offset: 3 }, to: { offset: 5 } }]);
});
