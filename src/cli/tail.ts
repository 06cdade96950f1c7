import type { Command } from 'commander';
import { FatalError } from '../core/errors.js';
import { sleep } from '../core/sleep.js';
import type { Entry, LogAccess } from '../log/index.js';
import { scoped } from '../wire/names.js';
import { formatPosition } from '../wire/position.js';
import { parseFrom } from '../wire/read-from.js';
import { existingTopic, withLog } from './access.js';
import { type Format, parseFormat } from './output.js';

interface Options {
  readonly from: string;
  readonly room?: string;
  readonly tenant: string;
  readonly count?: string;
  readonly follow: boolean;
  readonly output: Format;
  readonly redisUrl?: string;
}

const TOPIC = 'events';
const POLL_MS = 200;

export function addTail(root: Command): void {
  root
    .command('tail')
    .description("print a tenant's events as they are appended")
    .option('--from <where>', 'a position, earliest, latest, a time (ISO 8601 or ms) or an age (10m)', 'latest')
    .option('--room <room>', 'this room only')
    .option('-t, --tenant <name>', 'tenant', 'default')
    .option('-n, --count <n>', 'stop after so many events')
    .option('--no-follow', 'stop at the end of the log')
    .option('-o, --output <format>', 'text or json (one object a line)', parseFormat, 'text')
    .option('--redis-url <url>', 'the Redis of the log')
    .action(async (options: Options) => {
      const count = options.count === undefined ? Number.POSITIVE_INFINITY : Number(options.count);
      if (!(count > 0 && (count === Number.POSITIVE_INFINITY || Number.isInteger(count))))
        throw new FatalError(`--count: wants a whole number above 0, got ${JSON.stringify(options.count)}`);
      await withLog(options.redisUrl, (log) => tail(log, options, count));
    });
}

async function tail(log: LogAccess, { from, room, tenant, follow, output }: Options, count: number): Promise<void> {
  await existingTopic(log, TOPIC);
  const partition = await log.partitionOf(TOPIC, tenant);
  const start = parseFrom(from, await log.now());
  if (start === undefined)
    throw new FatalError(`--from: wants a position, earliest, latest, a time or an age, got ${JSON.stringify(from)}`);
  const prefix = `${scoped(tenant)}/`;
  const wanted = room === undefined ? undefined : scoped(tenant, room);
  let after = { ms: 0, offset: 0 };
  if (start === 'latest') after = { ...(await log.page(TOPIC, partition, after, { entries: 1, bytes: 1 })).newest };
  else if (start !== 'earliest') after = { ms: start.ms, offset: 'offset' in start ? start.offset : 0 };
  let left = count;
  while (left > 0) {
    const page = await log.page(TOPIC, partition, after, { entries: 500, bytes: 1_000_000 });
    for (const entry of page.entries) {
      const isWanted = entry.header.rooms.some((name) =>
        wanted === undefined ? name.startsWith(prefix) : name === wanted,
      );
      if (!isWanted || left-- <= 0) continue;
      print(entry, formatPosition(page.epoch, partition, entry.ms, entry.offset), output);
    }
    // a log that was wiped counts from 1 again
    after = page.newest.offset < after.offset ? { ms: 0, offset: 0 } : page.scanned;
    if (!page.isLast) continue;
    if (!follow) return;
    await sleep(POLL_MS);
  }
}

function print(entry: Entry, position: string, output: Format): void {
  const [event, data, meta] = JSON.parse(entry.payload.toString('utf8')) as [
    string,
    unknown,
    { room: string; id: string; at: number },
  ];
  if (output === 'json') process.stdout.write(`${JSON.stringify({ position, event, data, meta })}\n`);
  else
    process.stdout.write(
      `${new Date(entry.ms).toISOString()}  ${position}  ${meta.room}  ${event}  ${JSON.stringify(data)}\n`,
    );
}
