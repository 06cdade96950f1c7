import type { Command } from 'commander';
import { FatalError } from '../core/errors.js';
import { sleep } from '../core/sleep.js';
import { type Entry, type LogAccess, lossesOf } from '../log/index.js';
import { EVENTS_TOPIC } from '../wire/event.js';
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

const POLL_MS = 200;

interface Place {
  readonly ms: number;
  readonly offset: number;
}

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

async function tail(log: LogAccess, options: Options, count: number): Promise<void> {
  const { room, tenant, follow, output } = options;
  await existingTopic(log, EVENTS_TOPIC);
  const partition = await log.partitionOf(EVENTS_TOPIC, tenant);
  const prefix = `${scoped(tenant)}/`;
  const wanted = room === undefined ? undefined : scoped(tenant, room);
  const isWanted = ({ header }: Entry): boolean =>
    header.rooms.some((name) => (wanted === undefined ? name.startsWith(prefix) : name === wanted));
  let { after, epoch } = await begin(log, partition, options);
  const tell = (from: number, to: number, of: string, reason: Gap['reason']): void => {
    const at = (offset: number): string => formatPosition(of, partition, after.ms, offset);
    printGap({ from: at(from), to: at(to), reason }, output);
  };
  let left = count;
  while (left > 0) {
    const page = await log.page(EVENTS_TOPIC, partition, after, { entries: 500, bytes: 1_000_000 });
    // a log that was wiped or fell back has no epoch of its own until a relay begins one
    const isWhole = page.epoch !== '' && (page.epoch !== epoch || page.newest.offset >= after.offset);
    if (isWhole && epoch !== undefined && page.epoch !== epoch) {
      const survivor = await log.survivor(EVENTS_TOPIC, partition, epoch);
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
        if (!isWanted(entry) || left <= 0) continue;
        tellUpTo(entry.offset);
        print(entry, formatPosition(page.epoch, partition, entry.ms, entry.offset), output);
        left--;
      }
      if (left > 0) tellUpTo(page.newest.offset);
      after = isGoneToTheEnd ? page.newest : page.scanned;
      if (after.offset > 0) epoch = page.epoch;
      if (!page.isLast) continue;
    }
    if (!follow) return;
    await sleep(POLL_MS);
  }
}

interface Beginning {
  readonly after: Place;
  /** Of `after`; `undefined`: reading begins at a time or at the oldest entry, and misses nothing before it. */
  readonly epoch: string | undefined;
}

/** @throws {FatalError} `--from` is none, or no position of this log */
async function begin(log: LogAccess, partition: number, { from, tenant }: Options): Promise<Beginning> {
  const start = parseFrom(from, await log.now());
  if (start === undefined)
    throw new FatalError(`--from: wants a position, earliest, latest, a time or an age, got ${JSON.stringify(from)}`);
  if (start === 'earliest') return { after: { ms: 0, offset: 0 }, epoch: undefined };
  const { newest, epoch } = await log.page(EVENTS_TOPIC, partition, { ms: 0, offset: 0 }, { entries: 1, bytes: 1 });
  if (start === 'latest') return { after: newest, epoch };
  if (!('offset' in start)) return { after: { ms: start.ms, offset: 0 }, epoch: undefined };
  if (start.partition !== partition)
    throw new FatalError(`--from: tenant ${JSON.stringify(tenant)} is in partition ${partition}, got ${from}`);
  if (start.epoch === epoch && start.offset > newest.offset)
    throw new FatalError(`--from: no position of this log, got ${from}`);
  return { after: { ms: start.ms, offset: start.offset }, epoch: start.epoch };
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
