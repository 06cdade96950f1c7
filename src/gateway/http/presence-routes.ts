import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import type { Admission, ApiCaller } from '../../admission/index.js';
import type { Presence } from '../../presence/index.js';
import type { GatewayMetrics } from '../metrics.js';
import { actingTenantOf, counted, failures, name } from './api.js';

export interface PresenceRoutesOptions {
  readonly admission: Admission;
  readonly presence: Presence;
  readonly metrics: GatewayMetrics;
  readonly callerOf: (request: FastifyRequest) => ApiCaller;
}

/** Who is online, for back ends that speak HTTP. */
export function addPresenceRoutes(
  fastify: FastifyInstance,
  { presence, admission, metrics, callerOf }: PresenceRoutesOptions,
): void {
  fastify.withTypeProvider<ZodTypeProvider>().get(
    '/v1/presence/:user',
    {
      config: { scope: 'read' },
      schema: {
        summary: 'Devices of a user that are online, and methods that the user serves',
        security: [{ apiKey: [] }],
        params: z.object({ user: name }),
        querystring: z.object({ tenant: name.optional() }),
        response: {
          200: z.object({
            devices: z
              .array(
                z.object({
                  device: z.string().optional().describe('absent: the sockets whose token names none, together'),
                  since: z.number().describe('when the oldest of its sockets came: ms since 1970'),
                  sockets: z.number(),
                }),
              )
              .readonly(),
            methods: z.array(z.string()).readonly(),
          }),
          ...failures,
        },
      },
    },
    async (request) => {
      const tenant = await actingTenantOf(callerOf(request), request.query.tenant, admission);
      return counted(metrics, 'http-presence', () => presence.of(tenant, request.params.user));
    },
  );
}
