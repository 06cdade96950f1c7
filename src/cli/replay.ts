import { once } from 'node:events';
import { open } from 'node:fs/promises';
import type { Writable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { type Command, Option } from 'commander';
import { FatalError } from '../core/errors.js';
import { type Entry, GroupEntry, type LogAccess, lossesOf, partitionOf } from '../log/index.js';
import { encodeHeader } from '../wire/envelope.js';
import { EVENTS_TOPIC } from '../wire/event.js';
import { isName } from '../wire/names.js';
import { formatPosition } from '../wire/position.js';
import type { ReadFrom } from '../wire/read-from.js';
import { existingTopic, withLog } from './access.js';
import { type Beginning, beginningAt, whereOf } from './beginning.js';
import { entryFilter } from './entry-filter.js';
import { type Format, parseFormat } from './output.js';

interface Options {
  readonly from: string;
  readonly until: string;
  readonly room?: string;
  readonly tenant?: string;
  readonly toTopic?: string;
  readonly toFile?: string;
  readonly output: Format;
  readonly redisUrl?: string;
}

/** Of one page, all of which are on their way at a time. */
const PAGE = { entries: 500, bytes: 1_000_000 };

/** What has been done so far. */
interface Tally {
  copied: number;
  /** Gone from the range, for whatever reason. */
  lost: number;
  /** Where to go on with --from, by partition. */
  readonly last: Map<number, string>;
}

type Copy = (entries: readonly Entry[], partition: number, epoch: string) => Promise<void>;

export function addReplay(root: Command): void {
  root
    .command('replay')
    .argument('[topic]', 'topic to copy from', EVENTS_TOPIC)
    .description('copy a range of a topic to another topic, or to a file')
    .option(
      '--from <where>',
      'behind a position, or from earliest, a time (ISO 8601 or ms) or an age (10m) on',
      'earliest',
    )
    .option(
      '--until <where>',
      'up to and with a position, or before a time or an age; latest is the end as it is now',
      'latest',
    )
    .option('--room <room>', 'this room only')
    .option('-t, --tenant <name>', 'this tenant only')
    .option('--to-topic <topic>', 'append to this topic, which is made with as many partitions if there is none')
    .addOption(
      new Option(
        '--to-file <path>',
        'write to this new file, a JSON object a line; - is the standard output',
      ).conflicts('toTopic'),
    )
    .option('-o, --output <format>', 'text or json, of what was done', parseFormat, 'text')
    .option('--redis-url <url>', 'the Redis of the log')
    .action(async (topic: string, options: Options) => {
      const { toTopic, toFile } = options;
      if (toTopic === undefined && toFile === undefined) throw new FatalError('wants one of --to-topic and --to-file');
      if (toTopic !== undefined && !isName(toTopic))
        throw new FatalError('--to-topic: wants 1 to 200 characters without control characters');
      const tally: Tally = { copied: 0, lost: 0, last: new Map() };
      await withLog(options.redisUrl, async (log) => {
        await existingTopic(log, topic);
        const ranges = await rangesOf(log, topic, options);
        if (toFile === undefined) {
          const copy = await toTopicOf(log, topic, toTopic as string);
          await Promise.all(ranges.map((range) => replay(log, topic, range, options, copy, tally)));
          return;
        }
        await intoFile(toFile, async (copy) => {
          for (const range of ranges) await replay(log, topic, range, options, copy, tally);
        });
      }).catch((error: unknown) => {
        const places = [...tally.last.values()].join(', ');
        // what a file has got is in it
        if (toTopic !== undefined && tally.copied > 0)
          process.stderr.write(`holdfast: ${tally.copied} entries copied, up to ${places}\n`);
        throw error;
      });
      printTally(tally, toTopic ?? (toFile as string), options.output);
    });
}

/** Of one partition. */
interface Range {
  readonly partition: number;
  readonly beginning: Beginning;
  readonly until: { readonly offset: number } | { readonly beforeMs: number };
}

async function rangesOf(log: LogAccess, topic: string, { from, until }: Options): Promise<readonly Range[]> {
  const [start, end] = await Promise.all([whereOf(log, '--from', from), whereOf(log, '--until', until)]);
  const named = [start, end].map(partitionIn).filter((partition) => partition !== undefined);
  const count = await log.partitionCount(topic);
  const partitions = Array.from({ length: count }, (_, partition) => partition).filter((partition) =>
    named.every((each) => each === partition),
  );
  if (partitions.length === 0) throw new FatalError('--from, --until: no such partition, or not the same one');
  return Promise.all(
    partitions.map(async (partition) => {
      const beginning = await beginningAt(log, topic, partition, start);
      return { partition, beginning, until: await endAt(log, topic, partition, end) };
    }),
  );
}

function partitionIn(where: ReadFrom): number | undefined {
  return typeof where === 'object' && 'offset' in where ? where.partition : undefined;
}

/** The end is fixed at the start: a topic that is copied into itself has one too. */
async function endAt(log: LogAccess, topic: string, partition: number, end: ReadFrom): Promise<Range['until']> {
  if (end === 'earliest') throw new FatalError('--until: nothing is older than earliest');
  const { newest, epoch } = await log.page(topic, partition, { ms: 0, offset: 0 }, { entries: 1, bytes: 1 });
  if (end === 'latest') return { offset: newest.offset };
  if (!('offset' in end)) return { beforeMs: end.ms };
  if (end.epoch !== epoch) throw new FatalError(`--until: wants a position of epoch ${epoch}, got one of ${end.epoch}`);
  return { offset: Math.min(end.offset, newest.offset) };
}

async function replay(
  log: LogAccess,
  topic: string,
  { partition, beginning, until }: Range,
  { room, tenant }: Options,
  copy: Copy,
  tally: Tally,
): Promise<void> {
  const isWanted = entryFilter(tenant, room);
  const isWithin = (place: { ms: number; offset: number }): boolean =>
    'offset' in until ? place.offset <= until.offset : place.ms < until.beforeMs;
  let { after, epoch } = beginning;
  for (;;) {
    const page = await log.page(topic, partition, after, PAGE);
    if (epoch !== undefined && page.epoch !== epoch) {
      const survivor = await log.survivor(topic, partition, epoch);
      if (survivor && survivor.offset < after.offset) {
        tally.lost += after.offset - survivor.offset;
        after = survivor;
      }
      epoch = page.epoch;
      continue;
    }
    for (const { from, to } of lossesOf(page, after, epoch !== undefined)) {
      const end = 'offset' in until ? Math.min(to, until.offset) : to;
      tally.lost += Math.max(0, end - from + 1);
    }
    const entries = page.entries.filter((entry) => isWithin(entry) && isWanted(entry));
    const last = entries.at(-1);
    if (last) {
      await copy(entries, partition, page.epoch);
      tally.copied += entries.length;
      tally.last.set(partition, formatPosition(page.epoch, partition, last.ms, last.offset));
    }
    after = page.scanned;
    if (after.offset > 0) epoch = page.epoch;
    const isPast =
      page.entries.some((entry) => !isWithin(entry)) || ('offset' in until && after.offset >= until.offset);
    if (page.isLast || isPast) return;
  }
}

/** The order of a partition is kept where both topics have as many; else that of each tenant. */
async function toTopicOf(log: LogAccess, source: string, target: string): Promise<Copy> {
  const sourceCount = await log.partitionCount(source);
  const targetCount = await log.makeTopic(target, sourceCount);
  return async (entries, partition, epoch) => {
    const appended = entries.map(async (entry) => {
      const { header, payload, attachments } = entry;
      const { tenant } = GroupEntry.of(entry, partition, epoch);
      const place = targetCount === sourceCount ? partition : partitionOf(tenant, targetCount);
      // without idempotency ids: as many would leave none for those who publish there
      await log.append(target, place, { body: encodeHeader(header) + payload.toString('utf8'), attachments });
    });
    await Promise.all(appended);
  };
}

/** @throws {FatalError} it is there already, or can't be written */
async function intoFile(path: string, work: (copy: Copy) => Promise<void>): Promise<void> {
  const refused = (error: Error): FatalError => new FatalError(`--to-file: ${error.message}`, { cause: error });
  const isStdout = path === '-';
  const out: Writable = isStdout
    ? process.stdout
    : await createFile(path).catch((error: Error) => Promise.reject(refused(error)));
  let failure: Error | undefined;
  // where the standard output ends, so does the command
  if (!isStdout) out.on('error', (error) => (failure = error));
  try {
    await work(async (entries, partition, epoch) => {
      for (const entry of entries) {
        if (failure) throw failure;
        if (!out.write(`${JSON.stringify(lineOf(entry, partition, epoch))}\n`)) await once(out, 'drain');
      }
    });
    if (!isStdout) await finished(out.end());
  } catch (error) {
    throw failure ? refused(failure) : error;
  }
}

async function createFile(path: string): Promise<Writable> {
  return (await open(path, 'wx')).createWriteStream();
}

function lineOf(entry: Entry, partition: number, epoch: string): object {
  const { position, tenant, publisher, id, rooms } = GroupEntry.of(entry, partition, epoch);
  // attachments stand beside it, where it has a place for each
  const [event, data] = JSON.parse(entry.payload.toString('utf8')) as [unknown, unknown];
  const attachments = entry.attachments.map((part) => part.toString('base64'));
  const at = new Date(entry.ms).toISOString();
  return { position, at, tenant, publisher, id, rooms, event, data, ...(attachments.length > 0 && { attachments }) };
}

function printTally(tally: Tally, target: string, output: Format): void {
  // the standard output is the copy's
  const out = target === '-' ? process.stderr : process.stdout;
  const { copied, lost } = tally;
  const text = `${copied} entries copied to ${target}${lost > 0 ? `, ${lost} are gone` : ''}`;
  out.write(`${output === 'json' ? JSON.stringify({ copied, lost }) : text}\n`);
}
