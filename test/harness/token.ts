import { SignJWT } from 'jose';

/** `HOLDFAST_JWT_SECRET` of every pod that the harness starts. */
export const TEST_JWT_SECRET = 'the-test-secret-of-the-harness-0123456789';

export interface Caps {
  readonly subscribe?: readonly string[];
  readonly publish?: readonly string[];
  readonly call?: readonly string[];
  readonly register?: readonly string[];
}

export interface TokenOptions {
  readonly sub: string;
  readonly tenant?: string;
  readonly device?: string;
  readonly caps?: Caps;
  /** Default one hour; below 0 for a token that has expired. */
  readonly ttlSeconds?: number;
  /** Over the others, whatever they are. */
  readonly claims?: Readonly<Record<string, unknown>>;
}

/** May subscribe, publish, call and register everything in its tenant. */
export const ALL_CAPS: Caps = { subscribe: ['*'], publish: ['*'], call: ['*'], register: ['*'] };

export function token({
  sub,
  tenant,
  device,
  caps,
  ttlSeconds = 3600,
  claims: more = {},
}: TokenOptions): Promise<string> {
  const claims = { ...(tenant && { tenant }), ...(device && { device }), ...(caps && { caps }) };
  return new SignJWT({ sub, ...claims, ...more })
    .setProtectedHeader({ alg: 'HS256' })
    .setIssuedAt()
    .setExpirationTime(Math.floor(Date.now() / 1000) + ttlSeconds)
    .sign(new TextEncoder().encode(TEST_JWT_SECRET));
}
