import { RelayError } from '../core/errors.js';
import type { Logger } from '../core/ports.js';
import type { Database, Row } from '../postgres/database.js';
import { isName, scoped } from '../wire/names.js';
import { defaultsOf, type Identity } from './identity.js';
import { Lookup } from './lookup.js';
import { Proofs } from './proofs.js';
import { isDeviceToken, sha256 } from './secret-text.js';

const STATEMENT = `
select asked.i::int4 as i, d.tenant, d.user_id, d.id, d.revoked_at is not null as is_revoked,
  floor(extract(epoch from d.created_at) * 1000)::float8 as issued_at
from unnest($1::text[]) with ordinality as asked(hash, i) join devices d on d.token_hash = decode(asked.hash, 'hex')`;

interface TokenHolder {
  readonly tenant: string;
  readonly user: string;
  readonly device: string;
  readonly isRevoked: boolean;
  readonly issuedAt: number;
}

export interface DeviceTokensOptions {
  readonly database: Database;
  readonly isFresh: () => boolean;
  readonly logger: Logger;
}

/** The tokens that the relay itself gave to devices. They don't expire; they are revoked. */
export class DeviceTokens {
  readonly #lookup: Lookup<TokenHolder>;
  readonly #proofs: Proofs<Identity>;

  constructor({ database, isFresh, logger }: DeviceTokensOptions) {
    this.#lookup = new Lookup({
      database,
      name: 'device tokens',
      statement: STATEMENT,
      width: 1,
      statements: 1,
      parse,
      logger,
    });
    this.#proofs = new Proofs({ isFresh });
  }

  /**
   * @param signal whoever asks has gone
   * @throws {RelayError} `unauthorized`, or `unavailable` when the database can't say whether it knows the token
   */
  async identify(token: string, signal?: AbortSignal): Promise<Identity> {
    if (!isDeviceToken(token))
      throw new RelayError('unauthorized', 'Invalid device token: it is mistyped or cut short');
    const hash = sha256(token).toString('hex');
    const proved = this.#proofs.get(hash);
    if (proved) return proved;
    const { asOf } = this.#proofs;
    const answer = await this.#lookup.ask([hash], signal);
    if (answer.is === 'unknown')
      throw new RelayError('unavailable', 'whether the device token is good cannot be known now');
    if (answer.is !== 'found') throw new RelayError('unauthorized', 'Invalid device token');
    const { isRevoked, ...holder } = answer.found;
    if (isRevoked) throw new RelayError('unauthorized', 'the device was revoked');
    const { tenant, user, device } = holder;
    const proof = {
      ...holder,
      ...defaultsOf(tenant, user, device),
      tokenId: undefined,
      isByDeviceToken: true,
      expiresAt: Number.POSITIVE_INFINITY,
    };
    this.#proofs.keep(asOf, hash, { subject: scoped(tenant, user, device), proof });
    return proof;
  }

  /** A notice named it. */
  forget(tenant: string, user: string, device: string): void {
    this.#proofs.forget(scoped(tenant, user, device));
  }

  /** Notices were lost. */
  forgetAll(): void {
    this.#proofs.forgetAll();
  }
}

/** A row that somebody wrote by hand may be none that this could have made: then it is nobody's token. */
function parse(row: Row): TokenHolder | undefined {
  const { tenant, user_id: user, id: device, is_revoked: isRevoked, issued_at: issuedAt } = row;
  if (!isName(tenant) || !isName(user) || !isName(device)) return undefined;
  return { tenant, user, device, isRevoked: isRevoked !== false, issuedAt: Number(issuedAt) };
}
