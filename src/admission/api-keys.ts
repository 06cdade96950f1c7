import { createHash, timingSafeEqual } from 'node:crypto';
import { RelayError } from '../core/errors.js';

/** Who calls the HTTP API. */
export interface ApiCaller {
  /** The one tenant that the key speaks for, or `undefined`: all of them. */
  readonly tenant: string | undefined;
  /** Names the key in idempotency scopes and entries; says nothing of the key itself. */
  readonly fingerprint: string;
}

interface KnownKey {
  readonly hash: Buffer;
  readonly caller: ApiCaller;
}

const sha256 = (text: string): Buffer => createHash('sha256').update(text).digest();

/** The API keys of the environment. */
export class ApiKeys {
  readonly #keys: readonly KnownKey[];

  constructor(keys: readonly { readonly key: string; readonly tenant: string | undefined }[]) {
    this.#keys = keys.map(({ key, tenant }) => {
      const hash = sha256(key);
      return { hash, caller: { tenant, fingerprint: sha256(hash.toString('hex')).toString('hex').slice(0, 12) } };
    });
  }

  /**
   * @param header the header `Authorization: Bearer <key>`
   * @throws {RelayError} `unauthorized`
   */
  identify(header: string | undefined): ApiCaller {
    const match = /^Bearer +(\S{1,1024})$/i.exec(header ?? '');
    if (!match) throw new RelayError('unauthorized', 'an API key is wanted: Authorization: Bearer <key>');
    const hash = sha256(match[1] as string);
    let found: ApiCaller | undefined;
    for (const known of this.#keys) if (timingSafeEqual(known.hash, hash)) found = known.caller;
    if (!found) throw new RelayError('unauthorized', 'unknown API key');
    return found;
  }
}
