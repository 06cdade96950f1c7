import { randomUUID } from 'node:crypto';
import type { Command } from 'commander';
import { FatalError } from '../core/errors.js';
import { checkEvent, composeEvent, EVENTS_TOPIC } from '../wire/event.js';
import { isName } from '../wire/names.js';
import { formatPosition } from '../wire/position.js';
import { existingTopic, withLog } from './access.js';
import { type Format, parseFormat, parseJson } from './output.js';

interface Options {
  readonly tenant: string;
  readonly id?: string;
  readonly output: Format;
  readonly redisUrl?: string;
}

export function addPublish(root: Command): void {
  root
    .command('publish <room> <event> [data]')
    .description('append an event; data is JSON, or else a text')
    .option('-t, --tenant <name>', 'tenant', 'default')
    .option('--id <id>', 'idempotency id: within the window the same id is accepted once')
    .option('-o, --output <format>', 'text or json', parseFormat, 'text')
    .option('--redis-url <url>', 'the Redis of the log')
    .action(
      async (room: string, event: string, data: string | undefined, { tenant, id, output, redisUrl }: Options) => {
        if (!isName(tenant)) throw new FatalError('tenant: wants 1 to 200 characters without control characters');
        const checked = checkEvent({ room, event, data: parseJson(data), id });
        await withLog(redisUrl, async (log, config) => {
          await existingTopic(log, EVENTS_TOPIC);
          const origin = { tenant, publisher: 'cli', newId: randomUUID(), at: await log.now() };
          const { body, idempotency } = composeEvent(checked, origin, config.maxPayloadBytes);
          const partition = await log.partitionOf(EVENTS_TOPIC, tenant);
          const { position, isDuplicate } = await log.append(EVENTS_TOPIC, partition, { body, idempotency });
          const text = formatPosition(position.epoch, position.partition, position.ms, position.offset);
          const answer = { position: text, ...(isDuplicate && { duplicate: true }) };
          process.stdout.write(
            output === 'json' ? `${JSON.stringify(answer)}\n` : `${text}${isDuplicate ? ' (duplicate)' : ''}\n`,
          );
        });
      },
    );
}
