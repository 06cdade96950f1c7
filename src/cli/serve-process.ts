import { type LoadedConfig, printable, type RelayConfig } from '../config.js';
import { FatalError } from '../core/errors.js';
import { type Embedded, startEmbedded } from '../embedded/index.js';
import { countDroppedLines, createLogger, createMeter, type PrometheusMeter, type RelayLogger } from '../ops/index.js';
import { Relay } from '../relay.js';
import { VERSION } from '../version.js';
import { welcome } from './welcome.js';

/** npm hands Ctrl-C on, so it arrives twice within a moment: that is one. */
const SAME_SIGNAL_MS = 500;
/** After a drain, everything must be closed by then. */
const GRACE_MS = 15_000;

/** The process: settings, the relay, signals and the exit code. */
export class ServeProcess {
  readonly #config: RelayConfig;
  readonly #meter: PrometheusMeter;
  readonly #logger: RelayLogger;
  readonly #warnings: readonly string[];
  #embedded: Embedded | undefined;
  #relay: Relay | undefined;
  #signalledAt = 0;
  #isEnding = false;

  constructor({ config, warnings }: LoadedConfig) {
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
      const hasDatabase = config.databaseUrl === undefined;
      process.stdout.write(`Holdfast is starting its own Redis${hasDatabase ? ' and Postgres' : ''} …\n`);
      this.#embedded = await startEmbedded({ dir: config.dataDir, logger: this.#logger, hasDatabase });
      const { url, jwtSecret, apiKey } = this.#embedded;
      redisUrl = url;
      const hasKey = config.jwtSecret ?? config.jwtPublicKey ?? config.jwtJwksUrl;
      config = {
        ...config,
        jwtSecret: hasKey === undefined ? jwtSecret : config.jwtSecret,
        apiKeys: [...config.apiKeys, { key: apiKey, tenant: undefined }],
      };
    }
    const database = this.#embedded?.database;
    if (config.databaseUrl === undefined && !database)
      this.#logger.info({ event: 'admission_off' }, 'no DATABASE_URL: every tenant is active, and nothing is revoked');
    this.#relay = new Relay({
      config,
      redisUrl,
      database,
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
    await this.#embedded?.announce(this.#relay.port);
    if (this.#embedded) {
      const { jwtSecret, jwtPublicKey, jwtJwksUrl, apiKeys, socketPath } = this.#config;
      const { port, opsPort } = this.#relay;
      const isConfigured = (jwtSecret ?? jwtPublicKey ?? jwtJwksUrl) !== undefined;
      const text = await welcome({
        port,
        opsPort,
        socketPath,
        ownSecret: isConfigured ? undefined : this.#embedded.jwtSecret,
        canSign: jwtPublicKey === undefined && jwtJwksUrl === undefined,
        ownApiKey: apiKeys.length > 0 ? undefined : this.#embedded.apiKey,
      });
      process.stdout.write(text);
    }
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
}
