import type { Command } from 'commander';
import { FatalError } from '../core/errors.js';
import { planTrim, type TrimRow, trimPartition } from '../log/index.js';
import { EVENTS_TOPIC } from '../wire/event.js';
import { existingTopic, withLog } from './access.js';
import { whereOf } from './beginning.js';
import { confirm, withConfirmation } from './directory-access.js';
import { type Format, parseFormat, printRows } from './output.js';

interface Options {
  readonly output: Format;
  readonly redisUrl?: string;
}

const COLUMNS = {
  topic: 'TOPIC',
  partition: 'PARTITION',
  entries: 'ENTRIES',
  bytes: 'BYTES',
  first: 'FIRST-OFFSET',
  logEnd: 'LOG-END-POSITION',
};

const TRIM_COLUMNS = {
  topic: 'TOPIC',
  partition: 'PARTITION',
  first: 'FIRST-OFFSET',
  newFirst: 'NEW-FIRST-OFFSET',
  entries: 'ENTRIES',
  unread: 'UNREAD-BY',
};

export function addTopics(root: Command): void {
  const topics = root.command('topics').description('topics and their partitions');
  withOutput(topics.command('list').description('topics that have been used')).action(
    async ({ output, redisUrl }: Options) => {
      await withLog(redisUrl, async (log) => {
        const names = await log.topics();
        const rows = await Promise.all(
          names.map(async (topic) => ({ topic, partitions: await log.partitionCount(topic) })),
        );
        printRows(rows, { topic: 'TOPIC', partitions: 'PARTITIONS' }, output);
      });
    },
  );
  withOutput(
    topics
      .command('describe')
      .argument('[topic]', 'topic', EVENTS_TOPIC)
      .description('its partitions: what they hold, and where they end'),
  ).action(async (topic: string, { output, redisUrl }: Options) => {
    await withLog(redisUrl, async (log) => {
      await existingTopic(log, topic);
      printRows(await log.describe(topic), COLUMNS, output);
    });
  });
  withConfirmation(
    withOutput(
      topics
        .command('trim <topic>')
        .description('delete its oldest entries, whoever has not read them: who comes to them hears of a gap')
        .requiredOption(
          '--to <where>',
          'a position (it goes too), a time (ISO 8601 or ms) or an age (10m) before which all goes, or latest',
        ),
    ),
  ).action(async (topic: string, { to, output, redisUrl, yes }: Options & { to: string; yes?: true }) => {
    await withLog(redisUrl, async (log) => {
      await existingTopic(log, topic);
      const where = await whereOf(log, '--to', to);
      if (where === 'earliest') throw new FatalError('--to: nothing is older than earliest');
      const cuts = await planTrim(log, topic, where);
      const rows: TrimRow[] = [];
      for (const cut of cuts) rows.push(yes ? await trimPartition(log, cut) : cut.row);
      printRows(output === 'json' ? rows : rows.map(printable), TRIM_COLUMNS, output);
      const entries = rows.reduce((sum, row) => sum + row.entries, 0);
      if (entries > 0) confirm(yes, `delete ${entries} entries of topic ${topic}`);
    });
  });
}

function withOutput(command: Command): Command {
  return command
    .option('-o, --output <format>', 'text or json', parseFormat, 'text')
    .option('--redis-url <url>', 'the Redis of the log');
}

function printable(row: TrimRow): Readonly<Record<string, unknown>> {
  return { ...row, unread: row.unread.map(({ group, entries }) => `${group} (${entries})`).join(', ') || undefined };
}
