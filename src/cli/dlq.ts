import type { Command } from 'commander';
import { FatalError } from '../core/errors.js';
import { type DeadLetter, GroupAdmin, GroupEntry, type LogAccess } from '../log/index.js';
import { EVENTS_TOPIC } from '../wire/event.js';
import { existingTopic, withLog } from './access.js';
import { confirm, withConfirmation } from './directory-access.js';
import { noGroup } from './groups.js';
import { type Format, parseFormat, printRows } from './output.js';

interface Options {
  readonly topic: string;
  readonly output: Format;
  readonly redisUrl?: string;
}

interface ChoiceOptions extends Options {
  readonly all?: true;
}

const SUMMARY_COLUMNS = {
  group: 'GROUP',
  topic: 'TOPIC',
  deadLetters: 'DEAD-LETTERS',
  redriven: 'REDRIVEN',
  dropped: 'DROPPED',
};

const COLUMNS = {
  id: 'ID',
  position: 'POSITION',
  deliveries: 'DELIVERIES',
  reason: 'REASON',
  at: 'AT',
  event: 'EVENT',
  error: 'ERROR',
};

const ERROR_LENGTH = 60;
const DEFAULT_COUNT = 100;

export function addDlq(root: Command): void {
  const dlq = root.command('dlq').description('dead letters: what consumer groups have given up');

  withOptions(
    dlq.command('list [group]').description('dead letters of a group; of which groups there are any, if none is named'),
  )
    .option('-n, --count <n>', 'at most so many', parseCount, DEFAULT_COUNT)
    .action(async (group: string | undefined, options: Options & { readonly count: number }) => {
      const { topic, output, count: most } = options;
      await withLog(options.redisUrl, async (log) => {
        await existingTopic(log, topic);
        if (group === undefined) return printRows(await summaries(log, topic), SUMMARY_COLUMNS, output);
        const queue = await queueOf(log, topic, group);
        const { deadLetters } = await queue.count();
        const rows: object[] = [];
        for await (const letter of queue.letters()) {
          if (rows.length >= most) break;
          rows.push(rowOf(letter, output));
        }
        printRows(rows, COLUMNS, output);
        if (deadLetters > rows.length)
          process.stderr.write(`holdfast: ${deadLetters - rows.length} more: -n ${deadLetters}\n`);
      });
    });

  withOptions(
    dlq.command('show <group> <id>').description('a dead letter: the event, and how its deliveries failed'),
  ).action(async (group: string, id: string, { topic, output, redisUrl }: Options) => {
    await withLog(redisUrl, async (log) => {
      await existingTopic(log, topic);
      const letter = await (await queueOf(log, topic, group)).letter(id);
      if (!letter) throw noLetters([id], group);
      print(letter, output);
    });
  });

  withOptions(
    dlq
      .command('redrive <group> [ids...]')
      .description('give dead letters back to the group, which handles them once more, whether or not it is active')
      .option('--all', 'all that there are now'),
  ).action(async (group: string, ids: readonly string[], options: ChoiceOptions) => {
    const { topic, output, redisUrl } = options;
    const choice = choiceOf(ids, options);
    await withLog(redisUrl, async (log) => {
      await existingTopic(log, topic);
      const done = await (await queueOf(log, topic, group)).redrive(choice);
      printDone('redriven', done, output);
      complainOfMissing(choice, done, group);
    });
  });

  withConfirmation(
    withOptions(
      dlq.command('drop <group> [ids...]').description('delete dead letters').option('--all', 'all that there are now'),
    ),
  ).action(async (group: string, ids: readonly string[], options: ChoiceOptions & { readonly yes?: true }) => {
    const { topic, output, redisUrl, yes } = options;
    const choice = choiceOf(ids, options);
    await withLog(redisUrl, async (log) => {
      await existingTopic(log, topic);
      const queue = await queueOf(log, topic, group);
      const count = choice === 'all' ? (await queue.count()).deadLetters : choice.length;
      if (count > 0) confirm(yes, `delete ${count} dead letters of group ${JSON.stringify(group)}`);
      const done = await queue.drop(choice);
      printDone('dropped', done, output);
      complainOfMissing(choice, done, group);
    });
  });
}

function withOptions(command: Command): Command {
  return command
    .option('-t, --topic <topic>', 'topic', EVENTS_TOPIC)
    .option('-o, --output <format>', 'text or json', parseFormat, 'text')
    .option('--redis-url <url>', 'the Redis of the log');
}

/** @throws {FatalError} unless ids or `--all` are given */
function choiceOf(ids: readonly string[], { all: isAll }: ChoiceOptions): readonly string[] | 'all' {
  if (ids.length > 0 === (isAll === true)) throw new FatalError('wants ids of dead letters, or --all');
  return isAll ? 'all' : [...new Set(ids)];
}

/** @throws {FatalError} there is no such group, and nothing that it left */
async function queueOf(log: LogAccess, topic: string, group: string) {
  const admin = new GroupAdmin(log);
  const queue = admin.deadLetters(topic, group);
  if ((await admin.describe(topic, group)).length === 0 && (await queue.count()).deadLetters === 0)
    throw noGroup(group);
  return queue;
}

async function summaries(log: LogAccess, topic: string): Promise<readonly object[]> {
  const admin = new GroupAdmin(log);
  const rows = await admin.describe(topic);
  const groups = [...new Set(rows.map(({ group }) => group))];
  const all = await Promise.all(
    groups.map(async (group) => {
      const own = rows.filter((row) => row.group === group);
      const redriven = own.reduce((sum, row) => sum + (row.redriven ?? 0), 0);
      return { group, topic, redriven, ...(await admin.deadLetters(topic, group).count()) };
    }),
  );
  return all.filter(({ deadLetters, redriven, dropped }) => deadLetters + redriven + dropped > 0);
}

function contentOf({ entry, partition }: DeadLetter) {
  if (!entry) return undefined;
  const { event, data, tenant, rooms, publisher, id } = GroupEntry.of(entry, partition, '');
  return { event, data, tenant, rooms, publisher, eventId: id };
}

function rowOf(letter: DeadLetter, output: Format): object {
  const { id, topic, partition, position, deliveries, reason, failures } = letter;
  const at = new Date(letter.at).toISOString();
  const error = failures.at(-1)?.error;
  const row = { id, topic, partition, position, deliveries, reason, at, event: contentOf(letter)?.event };
  return { ...row, error: output === 'json' ? error : error && oneLine(error).slice(0, ERROR_LENGTH) };
}

function oneLine(text: string): string {
  return text.replaceAll(/\s+/g, ' ');
}

function print(letter: DeadLetter, output: Format): void {
  const { id, topic, partition, position, deliveries, reason, failures } = letter;
  const at = new Date(letter.at).toISOString();
  const content = contentOf(letter);
  if (output === 'json') {
    const whole = { id, topic, partition, position, deliveries, reason, at, ...content, failures };
    process.stdout.write(`${JSON.stringify(whole, null, 2)}\n`);
    return;
  }
  const lines = { id, topic, position, deliveries, reason, at, ...content, rooms: content?.rooms.join(', ') };
  for (const [name, value] of Object.entries(lines)) {
    const text = name === 'data' ? JSON.stringify(value) : String(value || '-');
    process.stdout.write(`${`${name}:`.padEnd(12)}${text}\n`);
  }
  process.stdout.write('\n');
  const rows = failures.map(({ at: ms, error, ...failure }) => ({
    ...failure,
    at: new Date(ms).toISOString(),
    error: error && oneLine(error),
  }));
  printRows(rows, { at: 'AT', member: 'CONSUMER', reason: 'REASON', error: 'ERROR' }, output);
}

function printDone(what: 'redriven' | 'dropped', ids: readonly string[], output: Format): void {
  process.stdout.write(output === 'json' ? `${JSON.stringify({ [what]: ids })}\n` : `${ids.length} ${what}\n`);
}

function noLetters(ids: readonly string[], group: string): FatalError {
  return new FatalError(`no dead letter ${ids.join(', ')}: holdfast dlq list ${group}`);
}

/** @throws {FatalError} some of those that were named were not there */
function complainOfMissing(choice: readonly string[] | 'all', done: readonly string[], group: string): void {
  if (choice === 'all') return;
  const missing = choice.filter((id) => !done.includes(id));
  if (missing.length > 0) throw noLetters(missing, group);
}

function parseCount(text: string): number {
  if (/^[1-9]\d{0,8}$/.test(text)) return Number(text);
  throw new FatalError(`--count: wants a whole number above 0, got ${JSON.stringify(text)}`);
}
