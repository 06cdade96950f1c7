import type { Server as HttpServer } from 'node:http';
import fastifySwagger from '@fastify/swagger';
import fastifySwaggerUi from '@fastify/swagger-ui';
import Fastify, { type FastifyInstance, type FastifyRequest } from 'fastify';
import {
  jsonSchemaTransform,
  serializerCompiler,
  validatorCompiler,
  type ZodTypeProvider,
} from 'fastify-type-provider-zod';
import { z } from 'zod';
import {
  type Admission,
  type ApiCaller,
  type ApiKeys,
  type DeviceSessions,
  StoredDirectory,
} from '../../admission/index.js';
import { FatalError, RelayError, toWireError } from '../../core/errors.js';
import type { Logger } from '../../core/ports.js';
import { Service } from '../../core/service.js';
import { within } from '../../core/sleep.js';
import type { EventLog } from '../../log/index.js';
import type { Database } from '../../postgres/database.js';
import type { Presence } from '../../presence/index.js';
import type { Keys } from '../../redis/keys.js';
import type { Rpc } from '../../rpc/index.js';
import { isRoom } from '../../wire/names.js';
import { readHistory } from '../history.js';
import type { Locator } from '../locator.js';
import type { GatewayMetrics } from '../metrics.js';
import type { Published, Publisher, PublishRequest } from '../publisher.js';
import { addAdminRoutes } from './admin-routes.js';
import { actingTenantOf, counted, demandScope, failure, failures, name, tenantOf } from './api.js';
import { addDeadLetterRoutes } from './dead-letter-routes.js';
import { addGroupRoutes } from './group-routes.js';
import { OperatorLog } from './operator-log.js';
import { addPresenceRoutes } from './presence-routes.js';
import { addRpcRoutes } from './rpc-routes.js';
import { addSessionRoutes } from './session-routes.js';
import { addTopicRoutes } from './topic-routes.js';

const MAX_LIST = 100;
/** At least; a list of events may have that much whatever one event may have. */
const MIN_BODY_BYTES = 2_000_000;
const MAX_HISTORY = 1000;
const CLOSE_MS = 5000;

const event = z.object({
  room: z.string().describe('1–200 characters'),
  event: z.string().describe('name that clients listen for'),
  data: z.unknown().optional().describe('any JSON'),
  id: z.string().optional().describe('idempotency id: within 2 minutes the same id is accepted once'),
  ephemeral: z.boolean().optional().describe('true: beside the log, at most once, no replay'),
  tenant: z.string().optional().describe('for keys that are bound to no tenant; default: `default`'),
});
const success = z.object({
  ok: z.literal(true),
  position: z.string().optional().describe('absent for an ephemeral event'),
  duplicate: z.boolean().optional(),
});
const historyPage = z.object({
  events: z
    .array(
      z.object({
        position: z.string(),
        event: z.string(),
        data: z.unknown(),
        meta: z.unknown(),
        attachments: z.array(z.string()).readonly().optional(),
      }),
    )
    .readonly(),
  next: z.string().describe('give it as `from` for the next page'),
  more: z.boolean(),
  gap: z.object({ from: z.string(), to: z.string(), reason: z.enum(['trimmed', 'epoch']) }).optional(),
});
export interface HttpServerOptions {
  readonly host: string;
  readonly port: number;
  readonly version: string;
  /** Redis, and what this pod is called there. */
  readonly url: string;
  readonly keys: Keys;
  readonly pod: string;
  readonly apiKeys: ApiKeys;
  readonly admission: Admission;
  readonly devices: DeviceSessions;
  readonly singleSession: string;
  /** None: there is nothing to administer. */
  readonly database: Database | undefined;
  readonly publisher: Publisher;
  readonly presence: Presence;
  readonly log: EventLog;
  readonly locator: Locator;
  readonly rpc: Rpc;
  readonly maxPayloadBytes: number;
  readonly rpcMaxPayloadBytes: number;
  readonly metrics: GatewayMetrics;
  readonly logger: Logger;
}

/** The public listener: the HTTP API under /v1, its description at /docs. Socket.IO attaches to the same server. */
export class PublicHttpServer extends Service {
  readonly #app: FastifyInstance;
  readonly #maxBodyBytes: number;
  readonly #operators: OperatorLog;
  readonly #callers = new WeakMap<FastifyRequest, ApiCaller>();

  constructor(private readonly options: HttpServerOptions) {
    super();
    // as JSON a payload may be written at twice its size
    this.#maxBodyBytes = Math.max(MIN_BODY_BYTES, 2 * options.maxPayloadBytes, 2 * options.rpcMaxPayloadBytes);
    this.#operators = new OperatorLog(options);
    this.#app = Fastify({
      logger: false,
      bodyLimit: this.#maxBodyBytes,
      requestTimeout: 30_000,
      keepAliveTimeout: 72_000,
      forceCloseConnections: 'idle',
      return503OnClosing: false,
      routerOptions: { maxParamLength: 12_000 },
    });
  }

  get server(): HttpServer {
    return this.#app.server;
  }

  get port(): number {
    const address = this.#app.server.address();
    return typeof address === 'object' && address !== null ? address.port : this.options.port;
  }

  /** Makes the routes ready; nothing is bound yet. */
  protected async onStart(): Promise<void> {
    await this.#routes();
    await this.#app.ready();
    this.#app.server.headersTimeout = 20_000;
    this.#app.server.on('clientError', (_error, socket) => {
      if (socket.writable) socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n');
    });
  }

  /** @throws {FatalError} in one line when the port is taken */
  async listen(): Promise<void> {
    const { host, port } = this.options;
    try {
      await this.#app.listen({ host, port });
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      const why =
        code === 'EADDRINUSE' ? 'the port is taken' : code === 'EACCES' ? 'not allowed' : String(code ?? error);
      throw new FatalError(`cannot bind the public listener to ${host}:${port} (PORT): ${why}`);
    }
  }

  /** Finishes the requests in hand, for a bounded time. */
  protected async onStop(): Promise<void> {
    const closed = this.#app.close();
    await within(
      CLOSE_MS,
      closed.then(() => true),
    );
    this.#app.server.closeAllConnections();
    await this.#operators.close();
  }

  async #routes(): Promise<void> {
    const app = this.#app.withTypeProvider<ZodTypeProvider>();
    app.setValidatorCompiler(validatorCompiler);
    app.setSerializerCompiler(serializerCompiler);
    await app.register(fastifySwagger, {
      openapi: {
        openapi: '3.1.0',
        info: {
          title: 'Holdfast',
          version: this.options.version,
          description: 'A durable event relay for Socket.IO back ends.',
        },
        components: { securitySchemes: { apiKey: { type: 'http', scheme: 'bearer' } } },
      },
      transform: jsonSchemaTransform,
    });
    await app.register(fastifySwaggerUi, { routePrefix: '/docs' });
    // before a body is read: only who may publish can send two megabytes
    app.addHook('onRequest', async (request) => {
      const { url, config } = request.routeOptions;
      if (!url?.startsWith('/v1/')) return;
      const caller = await this.options.apiKeys.identify(request.headers.authorization);
      demandScope(caller, config.scope);
      this.#callers.set(request, caller);
    });
    app.setErrorHandler((error, request, reply) => {
      const relayed = toRelayError(error, this.#maxBodyBytes);
      if (relayed.code === 'internal')
        this.options.logger.error(
          { event: 'http_failed', path: request.routeOptions.url, err: error },
          'a request failed by a fault of ours',
        );
      if (relayed.retryAfterMs !== undefined || relayed.status === 503 || relayed.status === 429)
        reply.header('retry-after', Math.max(1, Math.ceil((relayed.retryAfterMs ?? 1000) / 1000)));
      // closed with some of a body unread, the connection is reset, and its client may never see the answer
      if (relayed.code === 'payload_too_large') reply.removeHeader('connection');
      return reply.status(relayed.status).send(toWireError(relayed));
    });
    app.setNotFoundHandler((_request, reply) =>
      reply.status(404).send({ error: 'no such path; see /docs', code: 'bad_request', retryable: false }),
    );

    app.get(
      '/health',
      { schema: { summary: 'This process serves', response: { 200: z.object({ status: z.literal('ok') }) } } },
      async () => ({
        status: 'ok' as const,
      }),
    );
    app.post(
      '/v1/publish',
      {
        config: { scope: 'publish' },
        schema: {
          summary: 'Publish one event, or a list of at most 100',
          description:
            'One: the answer is its result. A list: `results`, one per item in order; each item stands for itself. `Idempotency-Key` is the id of a single event that has none.',
          security: [{ apiKey: [] }],
          headers: z.object({ 'idempotency-key': z.string().optional() }).loose(),
          body: z.union([z.array(z.unknown()), event.loose()]).describe('one event, or a list of events'),
          response: {
            200: z.union([
              success,
              z.object({ results: z.array(z.union([success, failure.extend({ ok: z.literal(false) })])) }),
            ]),
            ...failures,
          },
        },
      },
      async (request) => this.#publish(request, this.#caller(request)),
    );
    app.get(
      '/v1/history/:room',
      {
        config: { scope: 'read' },
        schema: {
          summary: "A room's events, oldest first",
          security: [{ apiKey: [] }],
          params: z.object({ room: z.string().refine(isRoom, 'wants a room') }),
          querystring: z.object({
            from: z
              .string()
              .max(100)
              .default('earliest')
              .describe('a position (what is behind it), earliest, latest, a time (ISO 8601 or ms), or an age: 10m'),
            limit: z.coerce.number().int().min(1).max(MAX_HISTORY).default(100),
            tenant: name.optional(),
          }),
          response: { 200: historyPage, ...failures },
        },
      },
      async (request) => {
        const { params, query } = request;
        const { log, locator, metrics, admission } = this.options;
        const tenant = await actingTenantOf(this.#caller(request), query.tenant, admission);
        return counted(metrics, 'http-history', () =>
          readHistory(log, locator, { tenant, room: params.room, from: query.from, limit: query.limit }),
        );
      },
    );
    addRpcRoutes(app, { ...this.options, callerOf: (request) => this.#caller(request) });
    addPresenceRoutes(app, { ...this.options, callerOf: (request) => this.#caller(request) });
    const { database } = this.options;
    if (database) addAdminRoutes(app, { ...this.options, directory: new StoredDirectory(database) });
    const operating = { operators: this.#operators, metrics: this.options.metrics };
    addTopicRoutes(app, operating);
    addGroupRoutes(app, operating);
    addDeadLetterRoutes(app, operating);
    addSessionRoutes(app, { ...this.options, callerOf: (request) => this.#caller(request) });
  }

  #caller(request: FastifyRequest): ApiCaller {
    const caller = this.#callers.get(request);
    if (!caller) throw new RelayError('unauthorized');
    return caller;
  }

  async #publish(
    request: FastifyRequest,
    caller: ApiCaller,
  ): Promise<z.infer<typeof success> | { results: PublishResult[] }> {
    const { body } = request;
    if (!Array.isArray(body)) {
      const item = body as PublishRequest;
      const key = request.headers['idempotency-key'];
      return {
        ok: true,
        ...(await this.#publishOne(item.id === undefined && key !== undefined ? { ...item, id: key } : item, caller)),
      };
    }
    if (body.length === 0 || body.length > MAX_LIST)
      throw new RelayError('bad_request', `a list has 1 to ${MAX_LIST} events`);
    const results = await Promise.all(
      body.map((item) =>
        this.#publishOne(item as PublishRequest, caller).then(
          (published): PublishResult => ({ ok: true, ...published }),
          (error: unknown): PublishResult => ({ ok: false, ...toWireError(error) }),
        ),
      ),
    );
    return { results };
  }

  #publishOne(item: PublishRequest & { readonly tenant?: unknown }, caller: ApiCaller): Promise<Published> {
    return counted(this.options.metrics, 'http-publish', async () => {
      if (typeof item !== 'object' || item === null || Array.isArray(item))
        throw new RelayError('bad_request', 'an event is an object');
      const tenant = tenantOf(caller, item.tenant);
      return this.options.publisher.publish(item, {
        tenant,
        name: `key:${caller.fingerprint}`,
        mayPublish: () => true,
        fence: () => this.options.admission.fenceTenant(tenant),
      });
    });
  }
}

type PublishResult = z.infer<typeof success> | ({ ok: false } & z.infer<typeof failure>);

/** Fastify's own refusals in the relay's codes. */
function toRelayError(error: unknown, maxBodyBytes: number): RelayError {
  if (error instanceof RelayError) return error;
  const { statusCode, message } = error as { statusCode?: number; message?: string };
  if (statusCode === 413) return new RelayError('payload_too_large', `a request has at most ${maxBodyBytes} bytes`);
  if (statusCode !== undefined && statusCode >= 400 && statusCode < 500) return new RelayError('bad_request', message);
  return new RelayError('internal', undefined, { cause: error });
}
