import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { type Directory, type Page, SCOPES } from '../../admission/index.js';
import type { GatewayMetrics } from '../metrics.js';
import { counted, failures, NotFound, name } from './api.js';

const time = z.number().int().describe('ms since 1970');
const isNew = z.boolean().describe('nothing was known of it before: is it spelt right?');
const tenantEntry = z.object({
  tenant: z.string(),
  status: z.enum(['active', 'archived']),
  createdAt: time,
  changedAt: time,
});
const deviceEntry = z.object({
  tenant: z.string(),
  user: z.string(),
  device: z.string(),
  hasToken: z.boolean().describe("false: its tokens are the issuer's"),
  createdAt: time,
  pairedAt: time.optional(),
  revokedAt: time.optional(),
});
const scopes = z.array(z.enum(SCOPES)).min(1).readonly();
const keyEntry = z.object({
  id: z.string(),
  tenant: z.string().optional().describe('absent: all'),
  scopes,
  label: z.string(),
  createdAt: time,
  expiresAt: time.optional(),
  revokedAt: time.optional(),
});
const next = z.string().optional().describe('give it as `after` for the next page; absent: this was the last');
const paging = z.object({
  after: z.string().max(4000).optional().describe('what the page before called `next`'),
  limit: z.coerce.number().int().min(1).max(1000).default(100),
});
const inTenant = z.object({ tenant: name });
const ofDevice = z.object({ tenant: name, user: name, device: name });

export interface AdminRoutesOptions {
  readonly directory: Directory;
  readonly metrics: GatewayMetrics;
}

/** Tenants, devices, API keys and revocations, for back ends that speak HTTP. A secret is told once, and is in no cache. */
export function addAdminRoutes(fastify: FastifyInstance, { directory, metrics }: AdminRoutesOptions): void {
  const app = fastify.withTypeProvider<ZodTypeProvider>();
  const config = { scope: 'admin' } as const;
  const security = [{ apiKey: [] }];
  const does = <T>(work: () => Promise<T>): Promise<T> => counted(metrics, 'http-admin', work);

  // --- tenants

  app.get(
    '/v1/tenants',
    {
      config,
      schema: {
        summary: 'Tenants that something is known of, by name',
        security,
        querystring: paging,
        response: { 200: z.object({ tenants: z.array(tenantEntry).readonly(), next }), ...failures },
      },
    },
    ({ query }) => does(async () => named('tenants', await directory.listTenants(query))),
  );
  app.post(
    '/v1/tenants',
    {
      config,
      schema: {
        summary: 'Create a tenant; one that is active already stays as it is',
        security,
        body: inTenant,
        response: { 200: tenantEntry.extend({ isNew }), ...failures },
      },
    },
    ({ body }) => does(() => directory.createTenant(body.tenant)),
  );
  app.get(
    '/v1/tenants/:tenant',
    {
      config,
      schema: { summary: 'A tenant', security, params: inTenant, response: { 200: tenantEntry, ...failures } },
    },
    ({ params }) => does(async () => (await directory.tenant(params.tenant)) ?? notFound('tenant', params.tenant)),
  );
  app.post(
    '/v1/tenants/:tenant/archive',
    {
      config,
      schema: {
        summary: 'Archive a tenant: its connections are closed, nobody of it comes in',
        security,
        params: inTenant,
        response: { 200: tenantEntry.extend({ isNew }), ...failures },
      },
    },
    ({ params }) => does(() => directory.archiveTenant(params.tenant)),
  );
  app.post(
    '/v1/tenants/:tenant/restore',
    {
      config,
      schema: {
        summary: 'Make an archived tenant active again',
        security,
        params: inTenant,
        response: { 200: tenantEntry, ...failures },
      },
    },
    ({ params }) =>
      does(async () => (await directory.restoreTenant(params.tenant)) ?? notFound('tenant', params.tenant)),
  );
  app.post(
    '/v1/tenants/:tenant/revocations',
    {
      config,
      schema: {
        summary: 'Revoke tokens: all of a user up to a time, or one by its `jti`',
        description: "A user's tokens are the issuer's and those of the user's devices. It is final.",
        security,
        params: inTenant,
        body: z.union([
          z.strictObject({
            user: name,
            before: time.optional().describe('issued then or before, ms since 1970; default: now'),
            expiresAt: time.optional().describe('when they all have expired; default: never'),
          }),
          z.strictObject({ token: name.describe('`jti`'), expiresAt: time.optional().describe('of the token') }),
        ]),
        response: { 200: z.object({ ok: z.literal(true) }), ...failures },
      },
    },
    ({ params, body }) =>
      does(async () => {
        await directory.revokeTokens({ ...body, tenant: params.tenant });
        return { ok: true as const };
      }),
  );

  // --- devices

  app.get(
    '/v1/tenants/:tenant/devices',
    {
      config,
      schema: {
        summary: 'Devices of a tenant that something is known of, by user and name',
        security,
        params: inTenant,
        querystring: paging.extend({ user: name.optional() }),
        response: { 200: z.object({ devices: z.array(deviceEntry).readonly(), next }), ...failures },
      },
    },
    ({ params, query }) => does(async () => named('devices', await directory.listDevices(params.tenant, query))),
  );
  app.post(
    '/v1/tenants/:tenant/devices',
    {
      config,
      schema: {
        summary: 'Create a device, and get its token',
        description:
          'The token is told once. A device that has one is a `conflict`, unless it is to be replaced; a revoked one comes back with a new one.',
        security,
        params: inTenant,
        body: z.object({
          user: name,
          device: name,
          paired: z.boolean().default(true),
          replace: z.boolean().default(false).describe('true: a token that it has stops to be good'),
        }),
        response: { 200: deviceEntry.extend({ token: z.string() }), ...failures },
      },
    },
    ({ params: { tenant }, body: { user, device, paired: isPaired, replace: isReplacing } }, reply) => {
      reply.header('cache-control', 'no-store');
      return does(() => directory.createDevice({ tenant, user, device, isPaired, isReplacing }));
    },
  );
  app.post(
    '/v1/tenants/:tenant/devices/:user/:device/revoke',
    {
      config,
      schema: {
        summary: 'Revoke a device, for good: its connection is closed, its tokens are refused',
        security,
        params: ofDevice,
        response: { 200: deviceEntry.extend({ isNew }), ...failures },
      },
    },
    ({ params }) => does(() => directory.revokeDevice(params)),
  );
  app.post(
    '/v1/tenants/:tenant/devices/:user/:device/pair',
    {
      config,
      schema: {
        summary: 'Pair a device: at its limits it waits for seconds, not for minutes',
        security,
        params: ofDevice,
        response: { 200: deviceEntry.extend({ isNew }), ...failures },
      },
    },
    ({ params }) => does(() => directory.pairDevice(params)),
  );
  app.post(
    '/v1/tenants/:tenant/devices/:user/:device/unpair',
    {
      config,
      schema: {
        summary: 'Undo the pairing of a device',
        security,
        params: ofDevice,
        response: { 200: deviceEntry, ...failures },
      },
    },
    ({ params }) => does(async () => (await directory.unpairDevice(params)) ?? notFound('device', params.device)),
  );

  // --- API keys

  app.get(
    '/v1/keys',
    {
      config,
      schema: {
        summary: 'API keys of the database, by id; those of the environment are not among them',
        security,
        querystring: paging.extend({ tenant: name.optional() }),
        response: { 200: z.object({ keys: z.array(keyEntry).readonly(), next }), ...failures },
      },
    },
    ({ query }) => does(async () => named('keys', await directory.listKeys(query))),
  );
  app.post(
    '/v1/keys',
    {
      config,
      schema: {
        summary: 'Create an API key',
        description: 'The key is told once. One that is bound to a tenant is never `admin`.',
        security,
        body: z.object({
          scopes,
          tenant: name.optional().describe('the one tenant that it speaks for; absent: all'),
          label: z.string().max(200).optional().describe('for people'),
          expiresAt: time.optional(),
        }),
        response: { 200: keyEntry.extend({ key: z.string() }), ...failures },
      },
    },
    ({ body }, reply) => {
      reply.header('cache-control', 'no-store');
      return does(() => directory.createKey(body));
    },
  );
  app.post(
    '/v1/keys/:id/revoke',
    {
      config,
      schema: {
        summary: 'Revoke an API key, for good',
        security,
        params: z.object({ id: name }),
        response: { 200: keyEntry, ...failures },
      },
    },
    ({ params }) => does(async () => (await directory.revokeKey(params.id)) ?? notFound('API key', params.id)),
  );
}

function named<Name extends string, Row>(what: Name, { rows, next: after }: Page<Row>) {
  return { [what]: rows, ...(after !== undefined && { next: after }) } as Record<Name, readonly Row[]> & {
    next?: string;
  };
}

/** @throws {NotFound} */
function notFound(what: string, id: string): never {
  throw new NotFound(`no ${what} ${JSON.stringify(id)} is known here`);
}
