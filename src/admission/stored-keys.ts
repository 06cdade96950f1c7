import { timingSafeEqual } from 'node:crypto';
import { RelayError } from '../core/errors.js';
import type { Logger } from '../core/ports.js';
import type { Database, Row } from '../postgres/database.js';
import { isName } from '../wire/names.js';
import type { ApiCaller } from './api-keys.js';
import { Lookup } from './lookup.js';
import { Proofs } from './proofs.js';
import { scopesOf } from './scopes.js';
import { idOfApiKey } from './secret-text.js';

/** By its id. Only who has the whole key is told what became of it. */
const STATEMENT = `
select asked.i::int4 as i, k.id, k.tenant, k.scopes, encode(k.key_hash, 'hex') as hash, k.revoked_at is not null as is_revoked,
  ((extract(epoch from k.expires_at) - extract(epoch from now())) * 1000)::float8 as left_ms
from unnest($1::text[]) with ordinality as asked(id, i) join api_keys k on k.id = asked.id`;

interface StoredKey {
  readonly caller: ApiCaller;
  readonly hash: Buffer;
  readonly isRevoked: boolean;
  /** By the database's clock. */
  readonly leftMs: number;
}

export interface StoredKeysOptions {
  readonly database: Database;
  readonly isFresh: () => boolean;
  readonly logger: Logger;
}

/** The API keys of the database. */
export class StoredKeys {
  readonly #lookup: Lookup<StoredKey>;
  readonly #proofs: Proofs<ApiCaller>;

  constructor({ database, isFresh, logger }: StoredKeysOptions) {
    this.#lookup = new Lookup({
      database,
      name: 'API keys',
      statement: STATEMENT,
      width: 1,
      statements: 1,
      parse,
      logger,
    });
    this.#proofs = new Proofs({ isFresh });
  }

  /**
   * @param hash SHA-256 of `key`
   * @returns `undefined`: there is no such key
   * @throws {RelayError} `unauthorized` when it is no longer good, `unavailable` when that can't be known
   */
  async identify(key: string, hash: Buffer): Promise<ApiCaller | undefined> {
    const id = idOfApiKey(key);
    if (id === undefined) return undefined;
    const name = hash.toString('hex');
    const proved = this.#proofs.get(name);
    if (proved) return proved;
    const { asOf } = this.#proofs;
    const answer = await this.#lookup.ask([id]);
    if (answer.is === 'unknown') throw new RelayError('unavailable', 'whether the API key is good cannot be known now');
    if (answer.is !== 'found' || !timingSafeEqual(answer.found.hash, hash)) return undefined;
    const { caller, isRevoked, leftMs } = answer.found;
    if (isRevoked) throw new RelayError('unauthorized', 'the API key was revoked');
    if (leftMs <= 0) throw new RelayError('unauthorized', 'the API key has expired');
    this.#proofs.keep(asOf, name, { subject: id, proof: caller }, leftMs);
    return caller;
  }

  /** A notice named it. */
  forget(id: string): void {
    this.#proofs.forget(id);
  }

  /** Notices were lost. */
  forgetAll(): void {
    this.#proofs.forgetAll();
  }
}

/** A row that somebody wrote by hand may be none that this could have made: then it is nobody's key. */
function parse({ id, tenant, scopes, hash, is_revoked: isRevoked, left_ms: leftMs }: Row): StoredKey | undefined {
  if (!isName(id) || !(tenant === null || isName(tenant)) || !Array.isArray(scopes)) return undefined;
  const bound = tenant ?? undefined;
  return {
    caller: { tenant: bound, fingerprint: id, scopes: scopesOf(bound, scopes) },
    hash: Buffer.from(String(hash), 'hex'),
    isRevoked: isRevoked !== false,
    leftMs: typeof leftMs === 'number' ? leftMs : Number.POSITIVE_INFINITY,
  };
}
