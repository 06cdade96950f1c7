import { randomUUID } from 'node:crypto';
import type { Command } from 'commander';
import { FatalError } from '../core/errors.js';
import { encodeEntry } from '../wire/envelope.js';
import { isName, isPublishableEvent, scoped } from '../wire/names.js';
import { formatPosition } from '../wire/position.js';
import { existingTopic, withLog } from './access.js';
import { type Format, parseFormat } from './output.js';

interface Options {
  readonly tenant: string;
  readonly id?: string;
  readonly output: Format;
  readonly redisUrl?: string;
}

const TOPIC = 'events';

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
        for (const [what, value] of Object.entries({ room, event, tenant, id }))
          if (value !== undefined && !isName(value))
            throw new FatalError(`${what}: wants 1 to 200 characters without control characters`);
        if (!isPublishableEvent(event)) throw new FatalError(`event ${JSON.stringify(event)} is reserved`);
        await withLog(redisUrl, async (log, config) => {
          await existingTopic(log, TOPIC);
          const meta = { room, id: id ?? randomUUID(), at: await log.now() };
          const payload = JSON.stringify([event, parseData(data), meta]);
          if (Buffer.byteLength(payload) > config.maxPayloadBytes)
            throw new FatalError(`the event has more than ${config.maxPayloadBytes} bytes`);
          const publisher = scoped(tenant, 'cli');
          const body = encodeEntry({ rooms: [scoped(tenant, room)], publisher, id: meta.id }, payload);
          const idempotency = id === undefined ? undefined : { scope: publisher, id };
          const { position, isDuplicate } = await log.append(TOPIC, await log.partitionOf(TOPIC, tenant), {
            body,
            idempotency,
          });
          const text = formatPosition(position.epoch, position.partition, position.ms, position.offset);
          const answer = { position: text, ...(isDuplicate && { duplicate: true }) };
          process.stdout.write(
            output === 'json' ? `${JSON.stringify(answer)}\n` : `${text}${isDuplicate ? ' (duplicate)' : ''}\n`,
          );
        });
      },
    );
}

function parseData(text: string | undefined): unknown {
  if (text === undefined) return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
