import type { Connection } from '../../redis/connect.js';
import type { Keys } from '../../redis/keys.js';
import { loadScript } from '../../redis/script.js';
import { isName } from '../../wire/names.js';
import type { SessionMetrics } from './metrics.js';
import type { Reach } from './reach.js';
import type { SessionSettings } from './settings.js';

const LIMIT = loadScript(import.meta.url, 'limit');

/** A site behind one address comes back all at once. */
const BURST_S = 10;

type How = 'look' | 'take' | 'note';

export interface LimitOptions {
  readonly connection: Connection;
  readonly keys: Keys;
  readonly settings: SessionSettings;
  readonly reach: Reach;
  readonly metrics: SessionMetrics;
}

/**
 * Limiters of all pods together; they pause while Redis is away. What counts before a token is proved counts under the address:
 * whoever names somebody else's device can't fill that device's own lists.
 */
export class Limits {
  constructor(private readonly options: LimitOptions) {}

  /** ms until the address may connect again; 0 = now. One that isn't known has no limit. */
  async connectWait(address: string | undefined): Promise<number> {
    const { keys, settings, metrics } = this.options;
    if (!isName(address)) return 0;
    const most = BURST_S * settings.connectsPerSecond;
    const waitMs = await this.#limit(keys.addressConnects(address), 'take', most, BURST_S * 1000);
    if (waitMs > 0) metrics.limited.inc({ limit: 'address' });
    return waitMs;
  }

  /** ms until the address may try a token for that device again; 0 = now. */
  async flapWait(address: string | undefined, claimed: string | undefined): Promise<number> {
    const { keys, settings, metrics } = this.options;
    if (!isName(address) || !isName(claimed)) return 0;
    const { flapMax, flapMs } = settings;
    const waitMs = await this.#limit(keys.addressRefusals(address, claimed), 'look', flapMax, flapMs);
    if (waitMs > 0) metrics.limited.inc({ limit: 'flap' });
    return waitMs;
  }

  /** A token that proved nothing. */
  noteRefusal(address: string | undefined, claimed: string | undefined): void {
    const { keys, settings } = this.options;
    if (!isName(address) || !isName(claimed)) return;
    void this.#limit(keys.addressRefusals(address, claimed), 'note', settings.flapMax, settings.flapMs);
  }

  /** An unpaired device was refused: that counts like an admission. One that was throttled already only flaps. */
  async noteRefusalOf(scope: string, isThrottled: boolean): Promise<void> {
    const { keys, settings } = this.options;
    const { flaps, reconnects } = keys.session(scope);
    const { flapMax, flapMs, reconnectMax, warmupMax, reconnectMs } = settings;
    const kept = reconnectMax === 0 ? 0 : Math.max(reconnectMax, warmupMax);
    await Promise.all([
      this.#limit(flaps, 'note', flapMax, flapMs),
      isThrottled ? 0 : this.#limit(reconnects, 'note', kept, reconnectMs),
    ]);
  }

  async #limit(key: string, how: How, max: number, windowMs: number): Promise<number> {
    if (max === 0) return 0;
    const { reach, connection } = this.options;
    const waitMs = await reach.ask(() => connection.run(LIMIT, [key], [how, max, windowMs, max]));
    return Number(waitMs ?? 0);
  }
}
