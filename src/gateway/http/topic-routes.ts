import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { RelayError } from '../../core/errors.js';
import { type LogAccess, planTrim, type TrimRow, trimPartition } from '../../log/index.js';
import { parseFrom, type ReadFrom } from '../../wire/read-from.js';
import type { GatewayMetrics } from '../metrics.js';
import { counted, failures, name } from './api.js';
import { existingTopic, type OperatorLog } from './operator-log.js';

const partitionEntry = z.object({
  partition: z.number(),
  epoch: z.string(),
  first: z.number().describe('its oldest offset'),
  logEnd: z.string().describe('position of its newest entry'),
  entries: z.number(),
  bytes: z.number(),
  epochs: z.array(z.object({ epoch: z.string(), reason: z.string() })).readonly(),
});
const trimmed = z.object({
  partition: z.number(),
  first: z.number().describe('the oldest offset before'),
  newFirst: z.number(),
  entries: z.number().describe('that go'),
  unread: z
    .array(z.object({ group: z.string(), entries: z.number() }))
    .readonly()
    .describe('groups that were not given all of them'),
});
const inTopic = z.object({ topic: name });

export interface TopicRoutesOptions {
  readonly operators: OperatorLog;
  readonly metrics: GatewayMetrics;
}

/** Topics, for those who look after them. */
export function addTopicRoutes(fastify: FastifyInstance, { operators, metrics }: TopicRoutesOptions): void {
  const app = fastify.withTypeProvider<ZodTypeProvider>();
  const config = { scope: 'admin' } as const;
  const security = [{ apiKey: [] }];
  const looks = <T>(work: (log: LogAccess) => Promise<T>): Promise<T> =>
    counted(metrics, 'http-admin', () => operators.look(work));

  app.get(
    '/v1/topics',
    {
      config,
      schema: {
        summary: 'Topics that have been used, by name',
        security,
        response: {
          200: z.object({ topics: z.array(z.object({ topic: z.string(), partitions: z.number() })) }),
          ...failures,
        },
      },
    },
    () =>
      looks(async (log) => {
        const names = await log.topics();
        const counts = await Promise.all(names.map((topic) => log.partitionCount(topic)));
        return { topics: names.map((topic, index) => ({ topic, partitions: counts[index] as number })) };
      }),
  );
  app.get(
    '/v1/topics/:topic',
    {
      config,
      schema: {
        summary: 'Partitions of a topic: what they hold, and where they end',
        security,
        params: inTopic,
        response: { 200: z.object({ topic: z.string(), partitions: z.array(partitionEntry).readonly() }), ...failures },
      },
    },
    ({ params: { topic } }) =>
      looks(async (log) => {
        await existingTopic(log, topic);
        return { topic, partitions: await log.describe(topic) };
      }),
  );
  app.post(
    '/v1/topics/:topic/trim',
    {
      config,
      schema: {
        summary: 'Delete the oldest entries of a topic, whoever has not read them',
        description:
          'Who comes to them hears of a gap. Without `execute` nothing is done: the answer is what would be.',
        security,
        params: inTopic,
        body: z.strictObject({
          to: z
            .string()
            .max(100)
            .describe(
              'a position (it goes too), a time (ISO 8601 or ms) or an age (10m) before which all goes, or latest',
            ),
          execute: z.boolean().default(false),
        }),
        response: {
          200: z.object({ topic: z.string(), executed: z.boolean(), partitions: z.array(trimmed) }),
          ...failures,
        },
      },
    },
    ({ params: { topic }, body: { to, execute } }) => {
      const trim = async (log: LogAccess) => {
        await existingTopic(log, topic);
        const cuts = await planTrim(log, topic, await whereOf(log, to));
        const partitions: TrimRow[] = [];
        for (const cut of cuts) partitions.push(execute ? await trimPartition(log, cut) : cut.row);
        return { topic, executed: execute, partitions };
      };
      return execute ? counted(metrics, 'http-admin', () => operators.change(trim)) : looks(trim);
    },
  );
}

/** @throws {RelayError} `bad_request`: it says no place, or one before which there is nothing */
async function whereOf(log: LogAccess, to: string): Promise<ReadFrom> {
  const where = parseFrom(to, await log.now());
  if (where === undefined) throw new RelayError('bad_request', 'to: wants a position, a time, an age, or latest');
  if (where === 'earliest') throw new RelayError('bad_request', 'to: nothing is older than earliest');
  return where;
}
