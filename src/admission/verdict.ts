import type { Row } from '../postgres/database.js';
import type { LookupKey } from './lookup.js';

/** Whose status is looked up: somebody with a proven token, or with `user` undefined a tenant alone. */
export interface Subject {
  readonly tenant: string;
  readonly user?: string | undefined;
  readonly device?: string | undefined;
  /** `jti` */
  readonly tokenId?: string | undefined;
  /** ms since 1970 */
  readonly issuedAt?: number | undefined;
  readonly isByDeviceToken?: boolean | undefined;
}

/** What Postgres holds on a subject. Nothing at all is the ordinary case. */
export interface Facts {
  readonly tenantStatus: 'active' | 'archived' | undefined;
  readonly isPaired: boolean;
  readonly isDeviceRevoked: boolean;
  /** The device was revoked and made anew since: its issuer's tokens that are no younger than this are dead, ms since 1970. */
  readonly deviceRevokedUpTo: number | undefined;
  /** When the device got the token of the relay's that it has, ms since 1970. */
  readonly deviceTokenSince: number | undefined;
  readonly isTokenRevoked: boolean;
  /** The user's tokens that are no younger than this are revoked, ms since 1970. */
  readonly revokedUpTo: number | undefined;
}

/** Unknown: Postgres didn't say, and whoever asks decides what that means. */
export type Verdict =
  | {
      readonly is: 'active';
      /** Undefined: there is nothing that could say it. */
      readonly isPaired: boolean | undefined;
      /** When it was asked for, monotonic ms. */
      readonly at: number;
    }
  | { readonly is: 'inactive'; readonly code: 'tenant_inactive' | 'unauthorized'; readonly reason: string }
  | { readonly is: 'unknown' };

export const UNKNOWN: Verdict = { is: 'unknown' };

/** For a {@link Lookup} of {@link Facts}; see `keyOf`. */
export const FACTS_STATEMENT = `
select k.i::int4 as i, t.status, d.paired_at is not null as paired, d.revoked_at is not null as revoked,
  case when d.token_hash is not null then floor(extract(epoch from d.created_at) * 1000)::float8 end as token_since,
  (extract(epoch from d.revoked_up_to) * 1000)::float8 as device_up_to,
  j.id is not null as token_revoked, (extract(epoch from u.not_before) * 1000)::float8 as not_before
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) with ordinality as k(tenant, user_id, device, token, i)
left join tenants t on t.id = k.tenant
left join devices d on d.tenant = k.tenant and d.user_id = k.user_id and d.id = k.device
left join revocations u on u.tenant = k.tenant and u.kind = 'user' and u.id = k.user_id
left join revocations j on j.tenant = k.tenant and j.kind = 'token' and j.id = k.token
where t.id is not null or d.id is not null or u.id is not null or j.id is not null`;

export const FACTS_WIDTH = 4;

export function keyOf({ tenant, user, device, tokenId }: Subject): LookupKey {
  return [tenant, user ?? null, device ?? null, tokenId ?? null];
}

export function parseFacts(row: Row): Facts {
  const { status, paired, revoked, token_since, device_up_to, token_revoked, not_before } = row;
  const isFlag = [paired, revoked, token_revoked].every((value) => typeof value === 'boolean');
  const isStatus = status === null || status === 'active' || status === 'archived';
  const areTimes = [not_before, token_since, device_up_to].every(
    (value) => value === null || typeof value === 'number',
  );
  if (!isFlag || !isStatus || !areTimes) throw new TypeError('a row of admission has another shape');
  return {
    tenantStatus: status ?? undefined,
    isPaired: paired as boolean,
    isDeviceRevoked: revoked as boolean,
    deviceRevokedUpTo: (device_up_to as number | null) ?? undefined,
    deviceTokenSince: (token_since as number | null) ?? undefined,
    isTokenRevoked: token_revoked as boolean,
    revokedUpTo: (not_before as number | null) ?? undefined,
  };
}

/**
 * @param facts undefined: there is no row at all
 * @param at when they were asked for, monotonic ms
 * @param isStrict a tenant without a row is inactive
 */
export function judge(subject: Subject, facts: Facts | undefined, at: number, isStrict: boolean): Verdict {
  const status = facts?.tenantStatus ?? (isStrict ? 'archived' : 'active');
  if (status !== 'active') return { is: 'inactive', code: 'tenant_inactive', reason: 'the tenant is not active' };
  if (facts?.isDeviceRevoked) return revoked('the device is revoked');
  // another one came in its place, perhaps so soon after a revocation that nobody saw that
  if (subject.isByDeviceToken && facts?.deviceTokenSince !== subject.issuedAt)
    return revoked('the device has another token');
  if (facts?.isTokenRevoked) return revoked('the token is revoked');
  // `iat` counts in seconds: one of the same second may be older
  const isUpTo = (time: number | undefined): boolean => time !== undefined && (subject.issuedAt ?? 0) <= time;
  if (!subject.isByDeviceToken && isUpTo(facts?.deviceRevokedUpTo)) return revoked('the device was revoked');
  if (isUpTo(facts?.revokedUpTo)) return revoked("the user's tokens are revoked up to a time");
  return { is: 'active', isPaired: facts?.isPaired ?? false, at };
}

function revoked(reason: string): Verdict {
  return { is: 'inactive', code: 'unauthorized', reason };
}
