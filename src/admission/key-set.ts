import { createLocalJWKSet, errors, type JSONWebKeySet, type JWTVerifyGetKey } from 'jose';
import { RelayError } from '../core/errors.js';

const FETCH_MS = 2000;
/**
 * Between two fetches, failed ones too: nobody's unknown `kid` makes the relay ask its issuer more often. Whoever comes with
 * one meanwhile is `unavailable`: it may be a key that the issuer has only just made.
 */
const COOL_DOWN_MS = 30_000;
/** Older than this, and the set is fetched again beside its use. */
const FRESH_MS = 600_000;

/**
 * An issuer's key set. What was fetched once stays good until something newer comes, however long the issuer is away: an
 * outage there refuses nobody whose key is known here, and what can't be known is `unavailable`, never `unauthorized`.
 */
export class KeySet {
  #keys: JWTVerifyGetKey | undefined;
  #triedAt = Number.NEGATIVE_INFINITY;
  #fetchedAt = Number.NEGATIVE_INFINITY;
  /** When the fetch began that brought what is here: it knows every key that the issuer had by then. */
  #askedAt = Number.NEGATIVE_INFINITY;
  #fetching: Promise<void> | undefined;
  #lastFailure: unknown;

  constructor(
    private readonly url: string,
    private readonly now: () => number = () => performance.now(),
  ) {}

  /** For jose: the key of a token's header. */
  readonly find: JWTVerifyGetKey = async (header, token) => {
    const arrivedAt = this.now();
    if (!this.#keys) {
      // without any key nobody gets in: what waits for one shares a fetch, and a failed one is tried again each second
      await this.#fetch(1000);
      if (!this.#keys) throw this.#unavailable();
    } else if (this.now() - this.#fetchedAt > FRESH_MS) void this.#fetch(COOL_DOWN_MS);
    const known = await this.#look(this.#keys, header, token);
    if (known) return known;
    // perhaps a new key of the issuer's
    if (this.#askedAt < arrivedAt) await this.#fetch(COOL_DOWN_MS);
    const found = await this.#look(this.#keys, header, token);
    if (found) return found;
    if (this.#askedAt < arrivedAt) throw this.#unavailable();
    throw new errors.JWKSNoMatchingKey();
  };

  /** `undefined`: the set holds no such key. */
  async #look(keys: JWTVerifyGetKey, ...[header, token]: Parameters<JWTVerifyGetKey>) {
    try {
      return await keys(header, token);
    } catch (error) {
      if (error instanceof errors.JWKSNoMatchingKey) return undefined;
      if (error instanceof errors.JOSEError) throw error;
      throw new RelayError('unavailable', "the issuer's key cannot be used", { cause: error });
    }
  }

  #unavailable(): RelayError {
    return new RelayError('unavailable', "the issuer's keys cannot be fetched now", { cause: this.#lastFailure });
  }

  /** Never rejects. */
  async #fetch(coolDownMs: number): Promise<void> {
    if (this.#fetching) return this.#fetching;
    if (this.now() - this.#triedAt < coolDownMs) return;
    const startedAt = this.now();
    this.#triedAt = startedAt;
    this.#fetching = this.#load()
      .then(
        (keys) => {
          this.#keys = keys;
          this.#fetchedAt = this.now();
          this.#askedAt = startedAt;
          this.#lastFailure = undefined;
        },
        (error: unknown) => {
          this.#lastFailure = error;
        },
      )
      .finally(() => {
        this.#fetching = undefined;
      });
    return this.#fetching;
  }

  async #load(): Promise<JWTVerifyGetKey> {
    const response = await fetch(this.url, {
      headers: { accept: 'application/json' },
      redirect: 'manual',
      signal: AbortSignal.timeout(FETCH_MS),
    });
    if (response.status !== 200) throw new Error(`the issuer's key set answered ${response.status}`);
    return createLocalJWKSet((await response.json()) as JSONWebKeySet);
  }
}
