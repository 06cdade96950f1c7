import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import type { Admission, ApiCaller, DeviceSessions } from '../../admission/index.js';
import { RelayError } from '../../core/errors.js';
import type { GatewayMetrics } from '../metrics.js';
import { actingTenantOf, counted, failures, name } from './api.js';

export interface SessionRoutesOptions {
  readonly admission: Admission;
  readonly devices: DeviceSessions;
  readonly singleSession: string;
  readonly metrics: GatewayMetrics;
  readonly callerOf: (request: FastifyRequest) => ApiCaller;
}

/** Sessions of devices, for back ends that must end one. */
export function addSessionRoutes(
  fastify: FastifyInstance,
  { devices, singleSession, admission, metrics, callerOf }: SessionRoutesOptions,
): void {
  fastify.withTypeProvider<ZodTypeProvider>().delete(
    '/v1/sessions/:user/:device',
    {
      config: { scope: 'sessions' },
      schema: {
        summary: "End a device's session, on whichever pod it is",
        description:
          'Its connection hears `session_replaced` and is closed; a stock client stays away until its code connects again. To keep a device out, revoke it.',
        security: [{ apiKey: [] }],
        params: z.object({ user: name, device: name }),
        querystring: z.object({ tenant: name.optional() }),
        response: { 200: z.object({ ended: z.boolean().describe('false: the device had no session') }), ...failures },
      },
    },
    async (request) => {
      const tenant = await actingTenantOf(callerOf(request), request.query.tenant, admission);
      return counted(metrics, 'http-sessions', async () => {
        if (singleSession === 'off')
          throw new RelayError('bad_request', 'HOLDFAST_SINGLE_SESSION is off: devices have no sessions');
        return { ended: await devices.end({ tenant, ...request.params }) };
      });
    },
  );
}
