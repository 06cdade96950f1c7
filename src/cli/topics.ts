import type { Command } from 'commander';
import { EVENTS_TOPIC } from '../wire/event.js';
import { existingTopic, withLog } from './access.js';
import { type Format, parseFormat, printRows } from './output.js';

interface Options {
  readonly output: Format;
  readonly redisUrl?: string;
}

export function addTopics(root: Command): void {
  const topics = root.command('topics').description('look at topics and their partitions');
  topics
    .command('list')
    .description('topics that have been used')
    .option('-o, --output <format>', 'text or json', parseFormat, 'text')
    .option('--redis-url <url>', 'the Redis of the log')
    .action(async ({ output, redisUrl }: Options) => {
      await withLog(redisUrl, async (log) => {
        const names = await log.topics();
        const rows = await Promise.all(
          names.map(async (topic) => ({ topic, partitions: await log.partitionCount(topic) })),
        );
        printRows(rows, { topic: 'TOPIC', partitions: 'PARTITIONS' }, output);
      });
    });
  topics
    .command('describe')
    .argument('[topic]', 'topic', EVENTS_TOPIC)
    .description('its partitions: what they hold, and where they end')
    .option('-o, --output <format>', 'text or json', parseFormat, 'text')
    .option('--redis-url <url>', 'the Redis of the log')
    .action(async (topic: string, { output, redisUrl }: Options) => {
      await withLog(redisUrl, async (log) => {
        await existingTopic(log, topic);
        const rows = await log.describe(topic);
        const columns = {
          topic: 'TOPIC',
          partition: 'PARTITION',
          entries: 'ENTRIES',
          bytes: 'BYTES',
          first: 'FIRST-OFFSET',
          logEnd: 'LOG-END-POSITION',
        };
        printRows(rows as unknown as Record<string, unknown>[], columns, output);
      });
    });
}
