import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { GroupAdmin, type GroupDescription, type LogAccess } from '../../log/index.js';
import { EVENTS_TOPIC } from '../../wire/event.js';
import { isName } from '../../wire/names.js';
import type { GatewayMetrics } from '../metrics.js';
import { counted, failures, NotFound, name } from './api.js';
import { existingTopic, type OperatorLog } from './operator-log.js';
import { durationOf, resetTarget, targetOf } from './reset-target.js';

/** What a path calls a group: its name in Redis, or a back end's own. */
export const groupName = z
  .string()
  .refine((text) => isName(text.replace(/^(app|pod):/, '')), 'wants the name of a group')
  .describe('`billing` or `app:billing`: a back end; `pod:relay-0`: a relay');
export const topicName = name.default(EVENTS_TOPIC);

const summary = z.object({
  group: z.string(),
  topic: z.string(),
  state: z.enum(['active', 'empty']).describe('active: somebody reads for it'),
  members: z.number(),
});
const place = z.object({
  partition: z.number(),
  currentPosition: z.string().optional().describe('the newest entry that it was given'),
  logEndPosition: z.string(),
  lag: z.number().optional().describe('entries that it was not given yet'),
  pending: z.number().optional().describe('entries that it was given and has not acknowledged; a relay has none'),
  oldestPendingMs: z.number().optional().describe('age of the oldest of these'),
  deadLetters: z.number().optional(),
  redriven: z.number().optional().describe('dead letters that come back and are not done yet'),
  consumer: z.string().optional().describe('who reads here, if it is one'),
  committedAt: z.number().optional().describe('when a relay last committed, ms since 1970'),
});
const member = z.object({
  member: z.string(),
  state: z.enum(['live', 'dead', 'gone']).describe('gone: only what it had in hand tells of it'),
  host: z.string().optional(),
  pid: z.number().optional(),
  mode: z.string().optional(),
  joinedAt: z.number().optional().describe('ms since 1970'),
  leaseUntil: z.number().optional().describe('ms since 1970'),
  partitions: z.array(z.number()).readonly().optional().describe('those that it has to itself, in an ordered group'),
  pending: z.number(),
});
const move = z.object({
  partition: z.number(),
  currentPosition: z.string().optional().describe('absent: there was no such group here'),
  newPosition: z.string(),
  lag: z.number().describe('entries that it has to read from there'),
  clamped: z
    .enum(['trimmed', 'beyond', 'epoch'])
    .optional()
    .describe('why it is elsewhere than wished: older is trimmed, the log ends there, less of that epoch survived'),
});
const garbage = z.object({
  what: z.enum(['group', 'member', 'consumer']),
  group: z.string(),
  topic: z.string(),
  partition: z.number().optional(),
  name: z.string().optional(),
  silentMs: z.number().describe('for how long it has said nothing'),
});
const ofGroup = z.object({ group: groupName });
const inTopic = z.object({ topic: topicName });
const about = { group: z.string().describe('its name in Redis'), topic: z.string() };

export interface GroupRoutesOptions {
  readonly operators: OperatorLog;
  readonly metrics: GatewayMetrics;
}

/** Consumer groups, for those who look after them. */
export function addGroupRoutes(fastify: FastifyInstance, { operators, metrics }: GroupRoutesOptions): void {
  const app = fastify.withTypeProvider<ZodTypeProvider>();
  const config = { scope: 'admin' } as const;
  const security = [{ apiKey: [] }];
  const looks = <T>(work: (log: LogAccess) => Promise<T>): Promise<T> =>
    counted(metrics, 'http-admin', () => operators.look(work));
  const changes = <T>(work: (log: LogAccess) => Promise<T>): Promise<T> =>
    counted(metrics, 'http-admin', () => operators.change(work));

  app.get(
    '/v1/groups',
    {
      config,
      schema: {
        summary: 'Consumer groups, of one topic or of all',
        security,
        querystring: z.object({ topic: name.optional() }),
        response: { 200: z.object({ groups: z.array(summary).readonly() }), ...failures },
      },
    },
    ({ query: { topic } }) =>
      looks(async (log) => ({ groups: await new GroupAdmin(log).list(await topicsOf(log, topic)) })),
  );
  app.get(
    '/v1/groups/:group',
    {
      config,
      schema: {
        summary: 'Where a group stands, partition by partition',
        security,
        params: ofGroup,
        querystring: inTopic,
        response: {
          200: z.object({ ...about, members: z.number().optional(), partitions: z.array(place).readonly() }),
          ...failures,
        },
      },
    },
    ({ params, query: { topic } }) =>
      looks(async (log) => {
        const partitions = await existingGroup(log, topic, params.group);
        const { group, members } = partitions[0] as GroupDescription;
        return { group, topic, members, partitions };
      }),
  );
  app.get(
    '/v1/groups/:group/members',
    {
      config,
      schema: {
        summary: 'Who reads for a back-end group, and what each has in hand',
        security,
        params: ofGroup,
        querystring: inTopic,
        response: { 200: z.object({ ...about, members: z.array(member).readonly() }), ...failures },
      },
    },
    ({ params, query: { topic } }) =>
      looks(async (log) => {
        const [{ group }] = (await existingGroup(log, topic, params.group)) as [GroupDescription];
        return { group, topic, members: await new GroupAdmin(log).members(topic, group) };
      }),
  );
  app.post(
    '/v1/groups/:group/reset-offsets',
    {
      config,
      schema: {
        summary: 'Put a back-end group to another place; it is made if there is none',
        description:
          'Without `execute` nothing is done: the answer is what would be, with the live `members` that would refuse it. A group that has some is a `conflict`.',
        security,
        params: ofGroup,
        body: z.strictObject({ topic: topicName, ...resetTarget, execute: z.boolean().default(false) }),
        response: {
          200: z.object({
            topic: z.string(),
            executed: z.boolean(),
            members: z.array(z.string()).readonly(),
            partitions: z.array(move).readonly(),
          }),
          ...failures,
        },
      },
    },
    async ({ params: { group }, body: { topic, execute, ...wanted } }) => {
      const doIt = async (log: LogAccess) => {
        const target = targetOf(wanted);
        await existingTopic(log, topic);
        const admin = new GroupAdmin(log);
        const { rows, members } = execute
          ? { rows: await admin.reset(topic, group, target), members: [] }
          : await admin.planReset(topic, group, target);
        return { topic, executed: execute, members, partitions: rows };
      };
      return execute ? changes(doIt) : looks(doIt);
    },
  );
  app.delete(
    '/v1/groups/:group',
    {
      config,
      schema: {
        summary: 'Delete a back-end group, its place and its dead letters',
        description: 'A group that has live members is a `conflict`.',
        security,
        params: ofGroup,
        querystring: inTopic,
        response: { 200: z.object({ ...about, pending: z.number(), deadLetters: z.number() }), ...failures },
      },
    },
    ({ params, query: { topic } }) =>
      changes(async (log) => {
        const admin = new GroupAdmin(log);
        await existingTopic(log, topic);
        const rows = await admin.describe(topic, params.group);
        const { deadLetters } = await admin.deadLetters(topic, params.group).count();
        if (rows.length === 0 && deadLetters === 0) throw noGroup(params.group);
        const group = rows[0]?.group ?? params.group;
        await admin.delete(topic, group);
        return { group, topic, pending: rows.reduce((sum, { pending = 0 }) => sum + pending, 0), deadLetters };
      }),
  );
  app.post(
    '/v1/groups/gc',
    {
      config,
      schema: {
        summary: 'Delete groups that nobody has read for long, and forget consumers that are gone',
        description: 'Without `execute` nothing is done: the answer is what would go.',
        security,
        body: z.strictObject({
          topic: name.optional().describe('absent: all'),
          silentFor: z.string().max(100).default('7d').describe('for how long nobody has read a group that goes'),
          execute: z.boolean().default(false),
        }),
        response: { 200: z.object({ executed: z.boolean(), garbage: z.array(garbage).readonly() }), ...failures },
      },
    },
    ({ body: { topic, silentFor, execute } }) => {
      const collect = async (log: LogAccess) => {
        const silentMs = durationOf('silentFor', silentFor);
        const admin = new GroupAdmin(log);
        const found = await admin.garbage(await topicsOf(log, topic), silentMs);
        return { executed: execute, garbage: execute ? await admin.collect(found) : found };
      };
      return execute ? changes(collect) : looks(collect);
    },
  );
}

async function topicsOf(log: LogAccess, topic: string | undefined): Promise<readonly string[]> {
  if (topic === undefined) return log.topics();
  await existingTopic(log, topic);
  return [topic];
}

/** @throws {NotFound} */
async function existingGroup(log: LogAccess, topic: string, group: string): Promise<readonly GroupDescription[]> {
  await existingTopic(log, topic);
  const rows = await new GroupAdmin(log).describe(topic, group);
  if (rows.length === 0) throw noGroup(group);
  return rows;
}

export function noGroup(group: string): NotFound {
  return new NotFound(`no group ${JSON.stringify(group)} is known here`);
}
