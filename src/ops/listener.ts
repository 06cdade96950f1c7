import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { FatalError } from '../core/errors.js';
import type { Logger } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep } from '../core/sleep.js';
import type { DependencyCheck } from './dependency-check.js';
import type { PrometheusMeter } from './metrics.js';
import type { Readiness } from './readiness.js';

export interface OpsListenerOptions {
  readonly host: string;
  /** 0 = any free port, see {@link OpsListener.port}. */
  readonly port: number;
  readonly identity: { readonly version: string; readonly pod: string; readonly processId: string };
  readonly readiness: Readiness;
  readonly meter: Pick<PrometheusMeter, 'text' | 'contentType'>;
  readonly dependencies: Pick<DependencyCheck, 'read'>;
  /** What the rooms add to `/_status`, such as the number of connections. */
  readonly status: () => object;
  readonly logger: Logger;
}

interface Answer {
  readonly status: number;
  readonly type: string;
  readonly body: string;
  readonly allow?: string;
}

/** A request that is not all here by then is closed, in ms. */
const REQUEST_MS = 5000;
const HEADER_BYTES = 8192;
/** Probes and scrapers need a handful; the rest would be descriptors that the public listener lacks. */
const MAX_CONNECTIONS = 512;
/** How long `stop` lets requests finish that are under way, in ms. */
const STOP_MS = 500;
const JSON_TYPE = 'application/json; charset=utf-8';

/**
 * The private listener: probes, status, metrics. It is started last, so that binding is the only "started" signal.
 * Readiness and liveness read this process and nothing else; `/_status` may wait up to 1 s for dependencies.
 */
export class OpsListener extends Service {
  #server: Server | undefined;
  #listening: Promise<unknown> | undefined;
  #isFailing = false;
  readonly #routes: ReadonlyMap<string, () => Answer | Promise<Answer>>;

  constructor(private readonly options: OpsListenerOptions) {
    super();
    const liveness = (): Answer => json(200, { status: 'alive' });
    const readiness = (): Answer => this.#readiness();
    const status = (): Promise<Answer> => this.#status();
    this.#routes = new Map<string, () => Answer | Promise<Answer>>([
      ['/_readiness', readiness],
      ['/readyz', readiness],
      ['/_liveness', liveness],
      ['/livez', liveness],
      ['/_status', status],
      ['/statusz', status],
      ['/metrics', () => this.#metrics()],
    ]);
  }

  /** The port that is bound; the configured one before `start`. */
  get port(): number {
    return (this.#server?.address() as AddressInfo | null | undefined)?.port ?? this.options.port;
  }

  /** @throws {FatalError} when the address can't be bound */
  protected override async onStart(): Promise<void> {
    const { host, port } = this.options;
    const server = createServer(
      {
        headersTimeout: REQUEST_MS,
        requestTimeout: REQUEST_MS,
        keepAliveTimeout: REQUEST_MS,
        connectionsCheckingInterval: 1000,
        maxHeaderSize: HEADER_BYTES,
      },
      (request, response) => void this.#serve(request, response),
    );
    server.maxConnections = MAX_CONNECTIONS;
    this.#server = server;
    this.#listening = once(server, 'listening');
    server.listen(port, host);
    try {
      await this.#listening;
    } catch (error) {
      this.#server = undefined;
      throw new FatalError(`cannot bind the private listener to ${host}:${port} (OPS_PORT): ${bindFault(error)}`);
    }
    server.on('error', (error) => this.options.logger.error({ err: error }, 'private listener failed'));
  }

  /** Lets requests under way finish, at most 500 ms, then closes every connection. */
  protected override async onStop(): Promise<void> {
    // a server that is about to listen can't be closed
    await this.#listening?.catch(() => {});
    const server = this.#server;
    if (!server) return;
    const closed = new Promise<void>((resolve) => server.close(() => resolve()));
    server.closeIdleConnections();
    const grace = new AbortController();
    await Promise.race([closed, sleep(STOP_MS, grace.signal)]);
    grace.abort();
    server.closeAllConnections();
    await closed;
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const answer = await this.#answer(request);
    response.writeHead(answer.status, {
      'content-type': answer.type,
      'content-length': Buffer.byteLength(answer.body),
      'cache-control': 'no-store',
      ...(answer.allow && { allow: answer.allow, connection: 'close' }),
    });
    response.end(answer.body);
  }

  async #answer({ url = '/', method }: IncomingMessage): Promise<Answer> {
    const [path = '/'] = url.split('?', 1);
    const route = this.#routes.get(path);
    if (!route) return json(404, { error: 'no such path', code: 'not_found' });
    if (method !== 'GET' && method !== 'HEAD')
      return { ...json(405, { error: 'GET or HEAD only', code: 'method_not_allowed' }), allow: 'GET, HEAD' };
    try {
      const answer = await route();
      this.#isFailing = false;
      return answer;
    } catch (error) {
      if (!this.#isFailing) this.options.logger.error({ err: error, path }, 'private listener cannot answer');
      this.#isFailing = true;
      return json(500, { error: 'Internal error', code: 'internal' });
    }
  }

  #readiness(): Answer {
    const outcome = this.options.readiness.check();
    return json(outcome === 'ready' ? 200 : 503, { status: outcome });
  }

  async #status(): Promise<Answer> {
    const { identity, readiness, dependencies, status } = this.options;
    const report = await dependencies.read();
    return json(200, {
      ...identity,
      uptimeSeconds: Math.floor(process.uptime()),
      draining: readiness.isDraining,
      ...status(),
      dependencies: report,
    });
  }

  async #metrics(): Promise<Answer> {
    const { meter } = this.options;
    return { status: 200, type: meter.contentType, body: await meter.text() };
  }
}

function json(status: number, body: object): Answer {
  return { status, type: JSON_TYPE, body: JSON.stringify(body) };
}

function bindFault(error: unknown): string {
  const { code, message } = error as NodeJS.ErrnoException;
  if (code === 'EADDRINUSE') return 'the port is taken';
  if (code === 'EACCES') return 'not permitted';
  return code ?? message;
}
