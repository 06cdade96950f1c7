import type { Command } from 'commander';
import { FatalError } from '../core/errors.js';
import { EVENTS_TOPIC } from '../wire/event.js';
import { existingTopic, withLog } from './access.js';
import { type Format, parseFormat, printRows } from './output.js';

interface Options {
  readonly output: Format;
  readonly redisUrl?: string;
  readonly topic: string;
}

const COLUMNS = {
  group: 'GROUP',
  topic: 'TOPIC',
  partition: 'PARTITION',
  currentPosition: 'CURRENT-POSITION',
  logEndPosition: 'LOG-END-POSITION',
  lag: 'LAG',
  consumer: 'CONSUMER',
};

export function addGroups(root: Command): void {
  const groups = root
    .command('groups')
    .description('look at consumer groups: pod:<name> is a relay, app:<name> a back end');
  const withOptions = (command: Command): Command =>
    command
      .option('-t, --topic <topic>', 'topic', EVENTS_TOPIC)
      .option('-o, --output <format>', 'text or json', parseFormat, 'text')
      .option('--redis-url <url>', 'the Redis of the log');
  withOptions(groups.command('list').description('names of all groups')).action(
    async ({ topic, output, redisUrl }: Options) => {
      await withLog(redisUrl, async (log) => {
        await existingTopic(log, topic);
        const names = new Set((await log.groups(topic)).map((row) => row.group));
        printRows(
          [...names].map((group) => ({ group })),
          { group: 'GROUP' },
          output,
        );
      });
    },
  );
  withOptions(
    groups
      .command('describe [group]')
      .description('where a group stands, one row per partition; all groups if none is named'),
  ).action(async (group: string | undefined, { topic, output, redisUrl }: Options) => {
    await withLog(redisUrl, async (log) => {
      await existingTopic(log, topic);
      const rows = (await log.groups(topic)).filter((row) => group === undefined || row.group === group);
      if (group !== undefined && rows.length === 0)
        throw new FatalError(`no group ${JSON.stringify(group)}: holdfast groups list`);
      printRows(rows as unknown as Record<string, unknown>[], COLUMNS, output);
    });
  });
}
