import { type Command, Option } from 'commander';
import { FatalError } from '../core/errors.js';
import { sleep } from '../core/sleep.js';
import { type Entry, GroupAdmin, type LogAccess, lossesOf } from '../log/index.js';
import { EVENTS_TOPIC } from '../wire/event.js';
import { formatPosition, parsePosition } from '../wire/position.js';
import type { ReadFrom } from '../wire/read-from.js';
import { existingTopic, withLog } from './access.js';
import { beginningAt, whereOf } from './beginning.js';
import { entryFilter } from './entry-filter.js';
import { noGroup } from './groups.js';
import { type Format, parseFormat } from './output.js';

interface Options {
  readonly from: string;
  readonly group?: string;
  readonly room?: string;
  readonly tenant?: string;
  readonly topic: string;
  readonly count?: string;
  readonly follow: boolean;
  readonly output: Format;
  readonly redisUrl?: string;
}

const POLL_MS = 200;

export function addTail(root: Command): void {
  root
    .command('tail')
    .description("print a tenant's events as they are appended")
    .option('--from <where>', 'a position, earliest, latest, a time (ISO 8601 or ms) or an age (10m)', 'latest')
    .addOption(
      new Option('--group <name>', 'from where this consumer group stands, which stays there').conflicts('from'),
    )
    .option('--room <room>', 'this room only')
    .option('-t, --tenant <name>', 'tenant (default: "default"; in another topic than events: all)')
    .option('--topic <topic>', 'topic', EVENTS_TOPIC)
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

async function tail(log: LogAccess, options: Options, count: number): Promise<void> {
  const { topic } = options;
  await existingTopic(log, topic);
  // all of a tenant's events are in one partition; other topics may be divided by something else
  const tenant = options.tenant ?? (topic === EVENTS_TOPIC ? 'default' : undefined);
  const own = topic === EVENTS_TOPIC ? await log.partitionOf(topic, tenant as string) : undefined;
  const starts = (await startsOf(log, options)).filter(({ partition }) => own === undefined || partition === own);
  if (starts.length === 0)
    throw new FatalError(`--from: tenant ${JSON.stringify(tenant)} is in partition ${own}, got ${options.from}`);
  const budget = { left: count };
  const isWanted = entryFilter(tenant, options.room);
  await Promise.all(starts.map((start) => tailPartition(log, start, options, isWanted, budget)));
}

interface Start {
  readonly partition: number;
  readonly from: ReadFrom;
}

/** @throws {FatalError} there is no such place or group */
async function startsOf(log: LogAccess, { topic, from, group }: Options): Promise<readonly Start[]> {
  if (group !== undefined) {
    const rows = await new GroupAdmin(log).describe(topic, group);
    if (rows.length === 0) throw noGroup(group);
    return rows.map(({ partition, currentPosition }) => ({
      partition,
      from: parsePosition(currentPosition) ?? 'earliest',
    }));
  }
  const where = await whereOf(log, '--from', from);
  if (typeof where === 'object' && 'offset' in where) return [{ partition: where.partition, from: where }];
  const count = await log.partitionCount(topic);
  return Array.from({ length: count }, (_, partition) => ({ partition, from: where }));
}

async function tailPartition(
  log: LogAccess,
  { partition, from }: Start,
  { topic, follow, output }: Options,
  isWanted: (entry: Entry) => boolean,
  budget: { left: number },
): Promise<void> {
  let { after, epoch } = await beginningAt(log, topic, partition, from);
  const tell = (from: number, to: number, of: string, reason: Gap['reason']): void => {
    const at = (offset: number): string => formatPosition(of, partition, after.ms, offset);
    printGap({ from: at(from), to: at(to), reason }, output);
  };
  while (budget.left > 0) {
    const page = await log.page(topic, partition, after, { entries: 500, bytes: 1_000_000 });
    // a log that was wiped or fell back has no epoch of its own until a relay begins one
    const isWhole = page.epoch !== '' && (page.epoch !== epoch || page.newest.offset >= after.offset);
    if (isWhole && epoch !== undefined && page.epoch !== epoch) {
      const survivor = await log.survivor(topic, partition, epoch);
      if (survivor && survivor.offset < after.offset) {
        tell(survivor.offset + 1, after.offset, epoch, 'epoch');
        after = survivor;
      }
      epoch = page.epoch;
      continue;
    }
    if (isWhole) {
      const losses = [...lossesOf(page, after, epoch !== undefined)];
      const tellUpTo = (offset: number): void => {
        for (; losses[0] && losses[0].to <= offset; losses.shift())
          tell(losses[0].from, losses[0].to, page.epoch, 'trimmed');
      };
      const isGoneToTheEnd = losses.at(-1)?.to === page.newest.offset;
      for (const entry of page.entries) {
        if (!isWanted(entry) || budget.left <= 0) continue;
        tellUpTo(entry.offset);
        print(entry, formatPosition(page.epoch, partition, entry.ms, entry.offset), output);
        budget.left--;
      }
      if (budget.left > 0) tellUpTo(page.newest.offset);
      after = isGoneToTheEnd ? page.newest : page.scanned;
      if (after.offset > 0) epoch = page.epoch;
      if (!page.isLast) continue;
    }
    if (!follow) return;
    await sleep(POLL_MS);
  }
}

interface Gap {
  readonly from: string;
  readonly to: string;
  readonly reason: 'trimmed' | 'epoch';
}

function printGap(gap: Gap, output: Format): void {
  process.stdout.write(
    output === 'json' ? `${JSON.stringify({ gap })}\n` : `-- gap: ${gap.from} … ${gap.to} (${gap.reason}) --\n`,
  );
}

function print(entry: Entry, position: string, output: Format): void {
  const [event, data, meta] = JSON.parse(entry.payload.toString('utf8')) as [string, unknown, { room: string }?];
  if (output === 'json') process.stdout.write(`${JSON.stringify({ position, event, data, meta })}\n`);
  else
    process.stdout.write(
      `${new Date(entry.ms).toISOString()}  ${position}  ${meta?.room ?? '-'}  ${event}  ${JSON.stringify(data)}\n`,
    );
}
