import { timingSafeEqual } from 'node:crypto';
import { RelayError } from '../core/errors.js';
import { type Scope, scopesOf } from './scopes.js';
import { sha256 } from './secret-text.js';
import type { StoredKeys } from './stored-keys.js';

/** Who calls the HTTP API. */
export interface ApiCaller {
  /** The one tenant that the key speaks for, or `undefined`: all of them. */
  readonly tenant: string | undefined;
  /** Names the key in idempotency scopes and entries; says nothing of the key itself. */
  readonly fingerprint: string;
  readonly scopes: ReadonlySet<Scope>;
}

interface KnownKey {
  readonly hash: Buffer;
  readonly caller: ApiCaller;
}

/** The API keys of the environment, and those of the database if there is one. */
export class ApiKeys {
  readonly #keys: readonly KnownKey[];

  constructor(
    keys: readonly { readonly key: string; readonly tenant: string | undefined }[],
    private readonly stored?: StoredKeys,
  ) {
    this.#keys = keys.map(({ key, tenant }) => {
      const hash = sha256(key);
      const fingerprint = sha256(hash.toString('hex')).toString('hex').slice(0, 12);
      return { hash, caller: { tenant, fingerprint, scopes: scopesOf(tenant) } };
    });
  }

  /**
   * Keys of the environment need no database.
   *
   * @param header the header `Authorization: Bearer <key>`
   * @throws {RelayError} `unauthorized`, or `unavailable` when the database can't say whether it knows the key
   */
  async identify(header: string | undefined): Promise<ApiCaller> {
    const match = /^Bearer +(\S{1,1024})$/i.exec(header ?? '');
    if (!match) throw new RelayError('unauthorized', 'an API key is wanted: Authorization: Bearer <key>');
    const key = match[1] as string;
    const hash = sha256(key);
    let found: ApiCaller | undefined;
    for (const known of this.#keys) if (timingSafeEqual(known.hash, hash)) found = known.caller;
    found ??= await this.stored?.identify(key, hash);
    if (!found) throw new RelayError('unauthorized', 'unknown API key');
    return found;
  }
}
