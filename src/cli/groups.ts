import { type Command, Option } from 'commander';
import { parseDuration } from '../core/duration.js';
import { FatalError } from '../core/errors.js';
import { parseIsoDuration } from '../core/iso-duration.js';
import {
  type Garbage,
  GroupAdmin,
  type GroupDescription,
  type LogAccess,
  type ResetRow,
  type ResetTarget,
} from '../log/index.js';
import { EVENTS_TOPIC } from '../wire/event.js';
import { parsePosition } from '../wire/position.js';
import { parseFrom } from '../wire/read-from.js';
import { existingTopic, withLog } from './access.js';
import { confirm, withConfirmation } from './directory-access.js';
import { ageText, type Format, parseFormat, printRows } from './output.js';

interface Options {
  readonly output: Format;
  readonly redisUrl?: string;
  readonly topic: string;
}

interface ResetOptions extends Options {
  readonly toEarliest?: true;
  readonly toLatest?: true;
  readonly toDatetime?: string;
  readonly byDuration?: string;
  readonly shiftBy?: string;
  readonly toPosition?: string;
  readonly execute?: true;
}

const COLUMNS = {
  group: 'GROUP',
  topic: 'TOPIC',
  partition: 'PARTITION',
  currentPosition: 'CURRENT-POSITION',
  logEndPosition: 'LOG-END-POSITION',
  lag: 'LAG',
  pending: 'PENDING',
  oldestPending: 'OLDEST-PENDING',
  deadLetters: 'DEAD-LETTERS',
  consumer: 'CONSUMER',
};

const MEMBER_COLUMNS = {
  group: 'GROUP',
  topic: 'TOPIC',
  member: 'CONSUMER',
  host: 'HOST',
  pid: 'PID',
  state: 'STATE',
  mode: 'MODE',
  partitions: 'PARTITIONS',
  pending: 'PENDING',
};

const RESET_COLUMNS = {
  group: 'GROUP',
  topic: 'TOPIC',
  partition: 'PARTITION',
  currentPosition: 'CURRENT-POSITION',
  newPosition: 'NEW-POSITION',
  lag: 'NEW-LAG',
  note: 'NOTE',
};

const GARBAGE_COLUMNS = {
  what: 'WHAT',
  group: 'GROUP',
  topic: 'TOPIC',
  partition: 'PARTITION',
  name: 'CONSUMER',
  silent: 'SILENT-FOR',
};

const CLAMPS = {
  trimmed: 'the log begins there',
  beyond: 'the log ends there',
  epoch: 'less of that epoch survived',
};

const EXECUTE = 'dry run: with --execute it is done';

export function addGroups(root: Command): void {
  const groups = root
    .command('groups')
    .description('consumer groups: pod:<name> is a relay, app:<name> (or <name>) a back end');

  withOutput(groups.command('list').description('names of all groups'))
    .option('-t, --topic <topic>', 'of this topic only')
    .action(async ({ output, redisUrl, topic }: Omit<Options, 'topic'> & { topic?: string }) => {
      await withLog(redisUrl, async (log) => {
        const rows = await new GroupAdmin(log).list(await topicsOf(log, topic));
        printRows(rows, { group: 'GROUP', topic: 'TOPIC', state: 'STATE', members: '#MEMBERS' }, output);
      });
    });

  inTopic(
    groups
      .command('describe [group]')
      .description('where a group stands, one row per partition; all groups if none is named')
      .option('--members', 'who reads for it instead, and what each has in hand'),
  ).action(async (group: string | undefined, options: Options & { readonly members?: true }) => {
    const { topic, output } = options;
    if (options.members && group === undefined) throw new FatalError('--members: wants the name of a group');
    if (options.members && group?.startsWith('pod:'))
      throw new FatalError('--members: a relay is one process, which describe names as CONSUMER');
    await inGroups(options, async (admin) => {
      const rows = await admin.describe(topic, group);
      if (group !== undefined && rows.length === 0) throw noGroup(group);
      if (options.members) {
        const members = await admin.members(topic, (rows[0] as GroupDescription).group);
        printRows(members, MEMBER_COLUMNS, output);
      } else printRows(output === 'json' ? rows : rows.map(printable), COLUMNS, output);
    });
  });

  inTopic(
    groups
      .command('reset-offsets <group>')
      .description('put a group to another place; it is made if there is none. Nothing is done without --execute')
      .option('--to-earliest', 'before the oldest entry that the log has')
      .option('--to-latest', 'behind the newest')
      .option('--to-datetime <time>', 'before the first entry of that time: ISO 8601, or ms since 1970')
      .option('--by-duration <age>', 'before the first entry of so long ago: 15m, or ISO 8601 (PT15M)')
      .option('--shift-by <n>', 'so many entries on, or back if n is below 0')
      .option('--to-position <position>', 'behind that entry, in its partition; or behind that offset, in all of them')
      .addOption(new Option('--dry-run', 'say what would be done, as without --execute').conflicts('execute'))
      .option('--execute', 'do it: refused while the group has live members'),
  ).action(async (group: string, options: ResetOptions) => {
    const { topic, output, execute } = options;
    const target = targetOf(options);
    await inGroups(options, async (admin) => {
      if (execute) return printReset(await admin.reset(topic, group, target), output);
      const { rows, members } = await admin.planReset(topic, group, target);
      printReset(rows, output);
      const refusal = members.length > 0 ? `, once the group is idle (now it has ${members.join(', ')})` : '';
      process.stderr.write(`holdfast: ${EXECUTE}${refusal}\n`);
    });
  });

  withConfirmation(
    inTopic(
      groups
        .command('delete <group>')
        .description('delete a group, its place and its dead letters; refused while it is active'),
    ),
  ).action(async (group: string, options: Options & { readonly yes?: true }) => {
    const { topic, output, yes } = options;
    await inGroups(options, async (admin) => {
      const rows = await admin.describe(topic, group);
      const { deadLetters } = await admin.deadLetters(topic, group).count();
      if (rows.length === 0 && deadLetters === 0) throw noGroup(group);
      const name = rows[0]?.group ?? group;
      const pending = rows.reduce((sum, row) => sum + (row.pending ?? 0), 0);
      confirm(yes, `delete ${name} of topic ${topic}, with ${pending} pending entries and ${deadLetters} dead letters`);
      await admin.delete(topic, name);
      const columns = { group: 'DELETED', topic: 'TOPIC', pending: 'PENDING', deadLetters: 'DEAD-LETTERS' };
      printRows([{ group: name, topic, pending, deadLetters }], columns, output);
    });
  });

  withConfirmation(
    withOutput(
      groups
        .command('gc')
        .description(
          'delete groups that nobody has read for long, and forget consumers that are gone and have nothing in hand',
        ),
    )
      .option('-t, --topic <topic>', 'of this topic only')
      .addOption(
        new Option('--silent-for <duration>', 'for how long nobody has read a group that goes')
          .argParser(parseSilence)
          .default(7 * 86_400_000, '7d'),
      ),
  ).action(
    async ({
      output,
      redisUrl,
      topic,
      silentFor,
      yes,
    }: Omit<Options, 'topic'> & { topic?: string; silentFor: number; yes?: true }) => {
      await withLog(redisUrl, async (log) => {
        const admin = new GroupAdmin(log);
        const found = await admin.garbage(await topicsOf(log, topic), silentFor);
        const shown = (rows: readonly Garbage[]) =>
          rows.map(({ stream: _, ...row }) => (output === 'json' ? row : { ...row, silent: ageText(row.silentMs) }));
        printRows(shown(yes ? await admin.collect(found) : found), GARBAGE_COLUMNS, output);
        if (found.length > 0) confirm(yes, 'remove these');
      });
    },
  );
}

function withOutput(command: Command): Command {
  return command
    .option('-o, --output <format>', 'text or json', parseFormat, 'text')
    .option('--redis-url <url>', 'the Redis of the log');
}

function inTopic(command: Command): Command {
  return withOutput(command.option('-t, --topic <topic>', 'topic', EVENTS_TOPIC));
}

async function inGroups({ redisUrl, topic }: Options, work: (admin: GroupAdmin) => Promise<void>): Promise<void> {
  await withLog(redisUrl, async (log) => {
    await existingTopic(log, topic);
    await work(new GroupAdmin(log));
  });
}

async function topicsOf(log: LogAccess, topic: string | undefined): Promise<readonly string[]> {
  if (topic === undefined) return log.topics();
  await existingTopic(log, topic);
  return [topic];
}

export function noGroup(group: string): FatalError {
  return new FatalError(`no group ${JSON.stringify(group)}: holdfast groups list`);
}

function printable(row: GroupDescription): Readonly<Record<string, unknown>> {
  const { consumer, members, oldestPendingMs } = row;
  return {
    ...row,
    oldestPending: oldestPendingMs === undefined ? undefined : ageText(oldestPendingMs),
    consumer: consumer ?? (members ? `${members} members` : undefined),
  };
}

function printReset(rows: readonly ResetRow[], output: Format): void {
  const noted = rows.map((row) => {
    const notes = [row.currentPosition === undefined && 'new', row.clamped && CLAMPS[row.clamped]];
    return { ...row, note: notes.filter(Boolean).join(', ') || undefined };
  });
  printRows(output === 'json' ? rows : noted, RESET_COLUMNS, output);
}

/** @throws {FatalError} unless exactly one place is named, and well */
function targetOf(options: ResetOptions): ResetTarget {
  const { toEarliest, toLatest, toDatetime, byDuration, shiftBy, toPosition } = options;
  const targets: ResetTarget[] = [];
  if (toEarliest) targets.push({ to: 'earliest' });
  if (toLatest) targets.push({ to: 'latest' });
  if (toDatetime !== undefined) targets.push({ to: 'time', ms: timeOf(toDatetime) });
  if (byDuration !== undefined) targets.push({ to: 'age', ms: durationOf('--by-duration', byDuration) });
  if (shiftBy !== undefined) targets.push({ to: 'shift', by: wholeOf('--shift-by', shiftBy, /^[+-]?\d{1,15}$/) });
  if (toPosition !== undefined) {
    const position = parsePosition(toPosition);
    if (position) targets.push({ to: 'position', position });
    else targets.push({ to: 'offset', offset: wholeOf('--to-position', toPosition, /^\d{1,15}$/) });
  }
  const [target, ...more] = targets;
  if (target === undefined || more.length > 0)
    throw new FatalError(
      'wants one of --to-earliest, --to-latest, --to-datetime, --by-duration, --shift-by and --to-position',
    );
  return target;
}

function timeOf(text: string): number {
  const at = /^\d+[a-z]/.test(text) ? undefined : parseFrom(text, 0);
  if (typeof at === 'object' && !('offset' in at)) return at.ms;
  throw new FatalError(`--to-datetime: wants ISO 8601 or ms since 1970, got ${JSON.stringify(text)}`);
}

function durationOf(flag: string, text: string): number {
  const ms = parseIsoDuration(text) ?? parseDuration(text);
  if (ms !== undefined) return ms;
  throw new FatalError(`${flag}: wants a duration such as 15m or PT15M, got ${JSON.stringify(text)}`);
}

function parseSilence(text: string): number {
  return durationOf('--silent-for', text);
}

function wholeOf(flag: string, text: string, shape: RegExp): number {
  if (shape.test(text)) return Number(text);
  const wanted = flag === '--shift-by' ? 'a whole number' : 'a position or an offset';
  throw new FatalError(`${flag}: wants ${wanted}, got ${JSON.stringify(text)}`);
}
