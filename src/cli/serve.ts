import type { Command } from 'commander';
import { loadConfig, printable, type RelayConfig } from '../config.js';
import { FatalError } from '../core/errors.js';
import { type Embedded, startEmbedded } from '../embedded/index.js';
import { countDroppedLines, createLogger, createMeter, type PrometheusMeter, type RelayLogger } from '../ops/index.js';
import { Relay } from '../relay.js';
import { VERSION } from '../version.js';
import { signToken } from './token.js';

/** npm hands Ctrl-C on, so it arrives twice within a moment: that is one. */
const SAME_SIGNAL_MS = 500;
/** After a drain, everything must be closed by then. */
const GRACE_MS = 15_000;

interface Options {
  readonly port?: string;
  readonly opsPort?: string;
  readonly redisUrl?: string;
  readonly pod?: string;
}

export function addServe(root: Command): void {
  root
    .command('serve')
    .description('run the relay; without REDIS_URL it brings its own Redis')
    .option('--port <n>', 'public listener (PORT)')
    .option('--ops-port <n>', 'private listener (OPS_PORT)')
    .option('--redis-url <url>', 'the Redis of the log (REDIS_URL)')
    .option('--pod <name>', "this pod's name (HOLDFAST_POD)")
    .action(async ({ port, opsPort, redisUrl, pod }: Options) => {
      const flags = { PORT: port, OPS_PORT: opsPort, REDIS_URL: redisUrl, HOLDFAST_POD: pod };
      await new ServeProcess(loadConfig(undefined, flags)).run();
    });
}

/** The process: settings, the relay, signals and the exit code. */
class ServeProcess {
  readonly #config: RelayConfig;
  readonly #meter: PrometheusMeter;
  readonly #logger: RelayLogger;
  readonly #warnings: readonly string[];
  #embedded: Embedded | undefined;
  #relay: Relay | undefined;
  #signalledAt = 0;
  #isEnding = false;

  constructor({ config, warnings }: ReturnType<typeof loadConfig>) {
    this.#config = config;
    this.#warnings = warnings;
    this.#meter = createMeter({ version: VERSION });
    this.#logger = createLogger({
      level: config.logLevel,
      bufferBytes: config.logBufferBytes,
      base: { pod: config.pod },
      onDropped: countDroppedLines(this.#meter),
    });
  }

  async run(): Promise<void> {
    process.on('SIGTERM', () => this.#onSignal());
    process.on('SIGINT', () => this.#onSignal());
    process.on('unhandledRejection', (error) =>
      this.#logger.error({ event: 'unhandled_rejection', err: error }, 'a promise was dropped'),
    );
    process.on('uncaughtException', (error) => {
      this.#logger.fatal({ event: 'uncaught_exception', err: error }, 'a fault that nothing caught ends this process');
      void this.#exit(1);
    });
    for (const warning of this.#warnings) this.#logger.warn({ event: 'config' }, warning);
    try {
      await this.#start();
    } catch (error) {
      if (this.#isEnding) return;
      if (!(error instanceof FatalError))
        this.#logger.fatal({ event: 'start_failed', err: error }, 'the relay could not start');
      process.stderr.write(
        `holdfast: ${error instanceof FatalError ? error.message : `could not start: ${(error as Error).message}`}\n`,
      );
      await this.#end(1);
    }
  }

  async #start(): Promise<void> {
    let config = this.#config;
    let redisUrl = config.redisUrl;
    if (redisUrl === undefined) {
      process.stdout.write('Holdfast is starting its own Redis …\n');
      this.#embedded = await startEmbedded({ dir: config.dataDir, logger: this.#logger });
      const { url, jwtSecret, apiKey } = this.#embedded;
      redisUrl = url;
      const hasKey = config.jwtSecret ?? config.jwtPublicKey ?? config.jwtJwksUrl;
      config = {
        ...config,
        jwtSecret: hasKey === undefined ? jwtSecret : config.jwtSecret,
        apiKeys: [...config.apiKeys, { key: apiKey, tenant: undefined }],
      };
    }
    this.#relay = new Relay({
      config,
      redisUrl,
      isEmbedded: this.#embedded !== undefined,
      logger: this.#logger,
      meter: this.#meter,
      onFatal: (message) => {
        this.#logger.fatal({ event: 'fenced' }, message);
        process.stderr.write(`holdfast: ${message}\n`);
        void this.#exit(1);
      },
    });
    await this.#relay.start();
    this.#logger.info(
      {
        event: 'started',
        version: VERSION,
        port: this.#relay.port,
        opsPort: this.#relay.opsPort,
        settings: printable(this.#config),
      },
      'the relay serves',
    );
    if (this.#embedded) await this.#welcome(this.#relay, config, this.#embedded.apiKey);
  }

  #onSignal(): void {
    const now = performance.now();
    if (this.#signalledAt === 0) {
      this.#signalledAt = now;
      void this.#end(0);
    } else if (now - this.#signalledAt > SAME_SIGNAL_MS) this.#relay?.hurry();
  }

  async #end(code: number): Promise<void> {
    if (this.#isEnding) return;
    this.#isEnding = true;
    const drainMs = this.#embedded ? 0 : this.#config.drainMs;
    setTimeout(() => process.exit(code === 0 ? 1 : code), drainMs + GRACE_MS).unref();
    try {
      await this.#relay?.stop();
      await this.#embedded?.stop();
    } catch (error) {
      this.#logger.error({ event: 'stop_failed', err: error }, 'not everything could be stopped in order');
    }
    this.#logger.info({ event: 'stopped' }, 'the relay has stopped');
    await this.#exit(code);
  }

  async #exit(code: number): Promise<void> {
    await this.#logger.flush();
    process.exit(code);
  }

  async #welcome({ port, opsPort }: Relay, config: RelayConfig, apiKey: string): Promise<void> {
    const caps = { subscribe: ['*'], publish: ['*'] };
    const hint =
      config.jwtSecret === undefined
        ? '<a token of your issuer>'
        : await signToken(config.jwtSecret, { user: 'me', ttlMs: 24 * 3_600_000, caps });
    const path = config.socketPath === '/socket.io' ? '' : `path: '${config.socketPath}', `;
    process.stdout.write(welcomeText({ port, opsPort, path, token: hint, apiKey }));
  }
}

interface Welcome {
  readonly port: number;
  readonly opsPort: number;
  /** Of Socket.IO, as an option of the client; empty for the usual one. */
  readonly path: string;
  readonly token: string;
  readonly apiKey: string;
}

function welcomeText({ port, opsPort, path, token, apiKey }: Welcome): string {
  return `
Holdfast ${VERSION} serves http://localhost:${port}   (probes and metrics: http://localhost:${opsPort}/metrics)

A token to try, good for a day, that may subscribe and publish everywhere:
${token}

Save this as client.mjs and run it with node client.mjs:

  import { io } from 'socket.io-client';
  const token = '${token}';
  const socket = io('http://localhost:${port}', { ${path}transports: ['websocket'], auth: { token } });
  socket.on('connect', async () => {
    console.log('connected', { recovered: socket.recovered });
    await socket.emitWithAck('subscribe', { room: 'news' });
    if (!socket.recovered) console.log(await socket.emitWithAck('publish', { room: 'news', event: 'hello', data: 'world' }));
  });
  socket.on('hello', (data, meta, position) => console.log(data, meta, position));
  socket.on('connect_error', (error) => console.log(error.message));

Or publish over HTTP (its description: http://localhost:${port}/docs):

  curl -s http://localhost:${port}/v1/publish -H 'content-type: application/json' \\
    -H 'authorization: Bearer ${apiKey}' -d '{"room":"news","event":"hello","data":"again"}'

Kill this process any way you like and start it again: clients come back and miss nothing. Ctrl-C stops it.
`;
}
