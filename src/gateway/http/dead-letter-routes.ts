import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { RelayError } from '../../core/errors.js';
import { type DeadLetter, GroupAdmin, GroupEntry, type LogAccess } from '../../log/index.js';
import type { GatewayMetrics } from '../metrics.js';
import { counted, failures, NotFound, withTexts } from './api.js';
import { groupName, noGroup, topicName } from './group-routes.js';
import { existingTopic, type OperatorLog } from './operator-log.js';

const MAX_IDS = 1000;

const letterId = z
  .string()
  .regex(/^\d{1,5}:\d{1,15}-\d{1,15}$/, 'wants the id of a dead letter')
  .describe('`<partition>:<its own id>`');
const letterRow = z.object({
  id: z.string(),
  partition: z.number(),
  position: z.string().describe('of the entry in the log, which may be trimmed by now'),
  at: z.number().describe('when it was given up, ms since 1970'),
  deliveries: z.number(),
  reason: z.string().describe('of its last failure: error, timeout or lost'),
  event: z.string().optional().describe('absent: it is of a newer version'),
  error: z.string().optional().describe('what its handler threw at last'),
});
const letter = letterRow.omit({ error: true }).extend({
  data: z.unknown().optional(),
  tenant: z.string().optional(),
  rooms: z.array(z.string()).readonly().optional(),
  publisher: z.string().optional(),
  eventId: z.string().optional(),
  failures: z
    .array(z.object({ at: z.number(), member: z.string(), reason: z.string(), error: z.string().optional() }))
    .readonly(),
});
const ofGroup = z.object({ group: groupName });
const inTopic = z.object({ topic: topicName });
const choice = z.strictObject({
  topic: topicName,
  ids: z.array(letterId).min(1).max(MAX_IDS).optional(),
  all: z.literal(true).optional().describe('in place of `ids`: all that there are now'),
});

export interface DeadLetterRoutesOptions {
  readonly operators: OperatorLog;
  readonly metrics: GatewayMetrics;
}

/** What back-end groups have given up, for those who look after it. */
export function addDeadLetterRoutes(fastify: FastifyInstance, { operators, metrics }: DeadLetterRoutesOptions): void {
  const app = fastify.withTypeProvider<ZodTypeProvider>();
  const config = { scope: 'admin' } as const;
  const security = [{ apiKey: [] }];
  const looks = <T>(work: (log: LogAccess) => Promise<T>): Promise<T> =>
    counted(metrics, 'http-admin', () => operators.look(work));
  const changes = <T>(work: (log: LogAccess) => Promise<T>): Promise<T> =>
    counted(metrics, 'http-admin', () => operators.change(work));

  app.get(
    '/v1/groups/:group/dead-letters',
    {
      config,
      schema: {
        summary: 'Dead letters of a group, the oldest first in each partition',
        security,
        params: ofGroup,
        querystring: inTopic.extend({ limit: z.coerce.number().int().min(1).max(1000).default(100) }),
        response: {
          200: z.object({
            count: z.number().describe('how many there are'),
            dropped: z.number().describe('how many fell out since there were too many'),
            deadLetters: z.array(letterRow),
          }),
          ...failures,
        },
      },
    },
    ({ params: { group }, query: { topic, limit } }) =>
      looks(async (log) => {
        const queue = await queueOf(log, topic, group);
        const { deadLetters: count, dropped } = await queue.count();
        const deadLetters: z.infer<typeof letterRow>[] = [];
        for await (const each of queue.letters()) {
          if (deadLetters.length >= limit) break;
          deadLetters.push({ ...each, event: contentOf(each)?.event, error: each.failures.at(-1)?.error });
        }
        return { count, dropped, deadLetters };
      }),
  );
  app.get(
    '/v1/groups/:group/dead-letters/:id',
    {
      config,
      schema: {
        summary: 'A dead letter: the event, and how its deliveries failed',
        description: 'Binary parts of its data are base64 texts.',
        security,
        params: ofGroup.extend({ id: letterId }),
        querystring: inTopic,
        response: { 200: letter, ...failures },
      },
    },
    ({ params: { group, id }, query: { topic } }) =>
      looks(async (log) => {
        const found = await (await queueOf(log, topic, group)).letter(id);
        if (!found) throw new NotFound(`no dead letter ${id} is known here`);
        return { ...found, ...contentOf(found) };
      }),
  );
  app.post(
    '/v1/groups/:group/dead-letters/redrive',
    {
      config,
      schema: {
        summary: 'Give dead letters back to the group, each once, whether or not it is active',
        security,
        params: ofGroup,
        body: choice,
        response: { 200: z.object({ redriven: z.array(z.string()), missing: z.array(z.string()) }), ...failures },
      },
    },
    ({ params: { group }, body }) =>
      changes(async (log) => {
        const ids = chosen(body);
        const redriven = [...(await (await queueOf(log, body.topic, group)).redrive(ids))];
        return { redriven, missing: missingOf(ids, redriven) };
      }),
  );
  app.post(
    '/v1/groups/:group/dead-letters/drop',
    {
      config,
      schema: {
        summary: 'Delete dead letters, for good',
        security,
        params: ofGroup,
        body: choice,
        response: { 200: z.object({ dropped: z.array(z.string()), missing: z.array(z.string()) }), ...failures },
      },
    },
    ({ params: { group }, body }) =>
      changes(async (log) => {
        const ids = chosen(body);
        const dropped = [...(await (await queueOf(log, body.topic, group)).drop(ids))];
        return { dropped, missing: missingOf(ids, dropped) };
      }),
  );
}

/** @throws {NotFound} there is no such group, and nothing that it left */
async function queueOf(log: LogAccess, topic: string, group: string) {
  await existingTopic(log, topic);
  const admin = new GroupAdmin(log);
  const queue = admin.deadLetters(topic, group);
  if ((await admin.describe(topic, group)).length === 0 && (await queue.count()).deadLetters === 0)
    throw noGroup(group);
  return queue;
}

function contentOf({ entry, partition }: DeadLetter) {
  if (!entry) return undefined;
  const { event, data, tenant, rooms, publisher, id } = GroupEntry.of(entry, partition, '');
  return { event, data: withTexts(data), tenant, rooms, publisher, eventId: id };
}

/** @throws {RelayError} `bad_request` unless it says which */
function chosen({ ids, all: isAll }: z.infer<typeof choice>): readonly string[] | 'all' {
  if ((ids === undefined) === (isAll === undefined))
    throw new RelayError('bad_request', 'wants ids of dead letters, or all: true');
  return ids ? [...new Set(ids)] : 'all';
}

function missingOf(ids: readonly string[] | 'all', done: readonly string[]): string[] {
  return ids === 'all' ? [] : ids.filter((id) => !done.includes(id));
}
