import { randomBytes } from 'node:crypto';
import type { Registry } from 'prom-client';
import { isAllowed } from '../admission/index.js';
import { fullJitter } from '../core/backoff.js';
import { RelayError } from '../core/errors.js';
import { type Logger, silentLogger, silentMeter } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep } from '../core/sleep.js';
import { meterOn } from '../ops/index.js';
import { Pods } from '../pods/index.js';
import { placeOf } from '../redis/client-place.js';
import { Keys } from '../redis/keys.js';
import { DEFAULT_SETTINGS, Rpc, type RpcSettings } from '../rpc/index.js';

/** What every way into calls takes. */
export interface RpcProcessOptions extends Partial<RpcSettings> {
  /** Before every key; relays have `hf:`. Processes with the same one reach each other. Default `hf:`. */
  readonly prefix?: string;
  /**
   * Methods that stock BullMQ Workers serve, as patterns of `<tenant>/<user>/<method>`, each part escaped as in a URL, with `*` for
   * any run of characters. Default: none.
   */
  readonly stockMethods?: readonly string[];
  /** Warnings and errors go there; pino has this shape. Default: nowhere. */
  readonly logger?: Logger;
  /** A registry of prom-client, to which `holdfast_rpc_*` is added. */
  readonly registry?: Registry;
}

const LIMITS: { readonly [K in keyof RpcSettings]: readonly [min: number, max: number] } = {
  graceMs: [0, 600_000],
  absentGraceMs: [0, 600_000],
  maxQueued: [1, 1_000_000],
  inFlight: [1, 10_000],
  maxPayloadBytes: [1024, 16 * 1024 * 1024],
};

/** Begins the ids of such processes; a relay's never begin so, for they have no dot. */
const KIND = 'rpc.';
/** A start that takes longer is said. */
const PATIENCE_MS = 3000;

/** A process of somebody's own among the pods: it has a lease and an inbox, and takes part in calls. */
export class RpcProcess extends Service {
  readonly rpc: Rpc;
  readonly #pods: Pods;
  readonly #logger: Logger;
  readonly #stopping = new AbortController();
  #saidWaiting = false;

  /**
   * @param forWhom the function that was given all this, for an error's text
   * @throws {TypeError} in one line: a client that doesn't say where its Redis is, an option with a wrong value
   */
  constructor(redis: unknown, options: RpcProcessOptions, forWhom: string) {
    super();
    const { prefix = 'hf:', logger = silentLogger, registry } = options;
    if (typeof prefix !== 'string' || !/^[\w:.-]{0,64}$/.test(prefix))
      throw new TypeError(`${forWhom}: prefix: wants at most 64 of the characters A–Z a–z 0–9 _ : . -`);
    const isStock = (target: string): boolean => isAllowed(options.stockMethods ?? [], target);
    const { address, keyPrefix } = placeOf(redis, forWhom);
    const place = randomBytes(9).toString('base64url');
    const processId = `${KIND}${place}`;
    this.#logger = logger;
    const shared = {
      url: address,
      keys: new Keys(`${keyPrefix}${prefix}`),
      // nobody takes up its place: its name is its own
      pod: `rpc-${place}`,
      processId,
      logger,
      meter: registry ? meterOn(registry) : silentMeter,
    };
    this.#pods = new Pods({
      ...shared,
      handOvers: [(dead) => this.rpc.buryProcess(dead)],
      // relays hold more than calls
      mayRemove: (dead) => dead.startsWith(KIND),
      isPatient: true,
      onReturn: () => void this.rpc.returnToLife(),
      onLost: () => {},
    });
    this.rpc = new Rpc({ ...shared, pods: this.#pods, settings: settingsOf(options, forWhom), isStock });
  }

  /** It is about to end, or has ended. */
  get stopping(): AbortSignal {
    return this.#stopping.signal;
  }

  /** Waits for Redis as long as it takes: nobody else would start this again. Rejects only when it is stopped meanwhile. */
  protected async onStart(): Promise<void> {
    const { signal } = this.#stopping;
    const patience = setTimeout(() => this.#sayWaiting(this.#pods.connection.lastError), PATIENCE_MS);
    patience.unref();
    try {
      await this.#pods.start();
      await this.#startRpc(signal);
    } catch (cause) {
      throw new RelayError('unavailable', 'closed before it was up', { cause });
    } finally {
      clearTimeout(patience);
    }
    if (this.#saidWaiting) this.#logger.info({ event: 'rpc_up' }, 'takes part in calls');
  }

  protected async onStop(): Promise<void> {
    this.#stopping.abort();
    // after a start that failed there would be nothing to stop, and what it had opened would stay
    this.rpc.start().catch(() => {});
    await this.rpc.stop();
    await this.#pods.stop();
  }

  async #startRpc(signal: AbortSignal): Promise<void> {
    for (let tries = 0; ; tries++) {
      signal.throwIfAborted();
      try {
        return await this.rpc.start();
      } catch (error) {
        if (!signal.aborted) this.#sayWaiting(error);
        await sleep(fullJitter(tries, 100, 2000), signal);
      }
    }
  }

  #sayWaiting(why: unknown): void {
    if (this.#saidWaiting) return;
    this.#saidWaiting = true;
    this.#logger.warn({ event: 'rpc_waits', err: why }, 'takes no part in calls yet; tried until Redis lets it');
  }
}

function settingsOf(options: RpcProcessOptions, forWhom: string): RpcSettings {
  const settings: { -readonly [K in keyof RpcSettings]: RpcSettings[K] } = { ...DEFAULT_SETTINGS };
  for (const [name, [min, max]] of Object.entries(LIMITS) as [keyof RpcSettings, readonly [number, number]][]) {
    const value = options[name];
    if (value === undefined) continue;
    if (!Number.isInteger(value) || value < min || value > max)
      throw new TypeError(`${forWhom}: ${name}: wants a whole number from ${min} to ${max} (got ${String(value)})`);
    settings[name] = value;
  }
  return Object.freeze(settings);
}
