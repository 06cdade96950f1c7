import { randomUUID } from 'node:crypto';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import type { Admission, ApiCaller } from '../../admission/index.js';
import { ERROR_CODES } from '../../core/errors.js';
import { failureOf, type Outcome, type Rpc, readCall } from '../../rpc/index.js';
import type { GatewayMetrics } from '../metrics.js';
import { actingTenantOf, counted, failure, failures, name, withTexts } from './api.js';

const failedCall = failure.extend({
  id: z
    .string()
    .optional()
    .describe("the call's, also where the request named none: with it the same call can be made again"),
  mayHaveRun: z.boolean().describe('the handler may have run, or be running'),
});

export interface RpcRoutesOptions {
  readonly admission: Admission;
  readonly rpc: Rpc;
  readonly metrics: GatewayMetrics;
  readonly callerOf: (request: FastifyRequest) => ApiCaller;
}

/** Calls for back ends that speak HTTP. */
export function addRpcRoutes(fastify: FastifyInstance, { rpc, admission, metrics, callerOf }: RpcRoutesOptions): void {
  const app = fastify.withTypeProvider<ZodTypeProvider>();
  app.post(
    '/v1/rpc/:user/:method',
    {
      config: { scope: 'call' },
      schema: {
        summary: 'Call a method of a user, and wait for its answer',
        description:
          'With the same id (`Idempotency-Key`, or `id`) and params it is the same call, and has the same answer: also after a request that was cut off. Binary parts of a result are base64 texts.',
        security: [{ apiKey: [] }],
        headers: z.object({ 'idempotency-key': z.string().optional() }).loose(),
        params: z.object({ user: name, method: name }),
        body: z
          .object({
            params: z.unknown().optional().describe('any JSON'),
            id: z.string().optional(),
            timeoutMs: z.number().optional().describe('1 to 600000; default 30000'),
            waitForWorkerMs: z.number().optional().describe('the longest wait for a worker; 0 = none'),
            idempotent: z.boolean().optional().describe('true: it may run again if its worker dies over it'),
            tenant: z.string().optional().describe('for keys that are bound to no tenant; default: `default`'),
          })
          .nullish(),
        response: {
          200: z.object({ ok: z.literal(true), result: z.unknown() }),
          '4xx': z.union([failedCall, failure]),
          '5xx': z.union([failedCall, failure]),
        },
      },
    },
    async (request, reply) => {
      const { params, headers } = request;
      const caller = callerOf(request);
      const { tenant, id = headers['idempotency-key'] ?? `c-${randomUUID()}`, ...body } = request.body ?? {};
      let outcome: Outcome;
      try {
        const by = {
          caller: `key:${caller.fingerprint}`,
          tenant: await actingTenantOf(caller, tenant, admission),
          user: params.user,
        };
        outcome = await rpc.call(readCall({ ...body, id, method: params.method }, by, () => id));
      } catch (error) {
        outcome = failureOf(error);
      }
      metrics.commands.inc({ command: 'http-rpc', code: outcome.ok ? 'ok' : outcome.code });
      if (outcome.ok) return { ok: true as const, result: withTexts(outcome.result) };
      const { ok, ...failed } = outcome;
      if (failed.retryable) reply.header('retry-after', 1);
      return reply.status(ERROR_CODES[failed.code].status as 500).send({ ...failed, id });
    },
  );
  app.get(
    '/v1/rpc/:user',
    {
      config: { scope: 'read' },
      schema: {
        summary: 'Methods that a user serves',
        description: 'One whose daemon was cut off is `away` for the grace period; calls of it wait for its return.',
        security: [{ apiKey: [] }],
        params: z.object({ user: name }),
        querystring: z.object({ tenant: name.optional() }),
        response: {
          200: z.object({
            methods: z
              .array(
                z.object({
                  method: z.string(),
                  state: z.enum(['live', 'away']),
                  pod: z.string().optional().describe('of a live one'),
                  since: z.number().optional().describe('of one that is away: ms since 1970'),
                  waiting: z.number().describe('calls that wait'),
                  active: z.number().describe('calls that are in work'),
                }),
              )
              .readonly(),
          }),
          ...failures,
        },
      },
    },
    async (request) => {
      const tenant = await actingTenantOf(callerOf(request), request.query.tenant, admission);
      return counted(metrics, 'http-rpc-methods', async () => ({
        methods: await rpc.methodsOf(tenant, request.params.user),
      }));
    },
  );
}
