import { createPublicKey, type KeyObject } from 'node:crypto';
import { errors, type JWTPayload, type JWTVerifyOptions, jwtVerify } from 'jose';
import { FatalError, RelayError } from '../core/errors.js';
import { escapePart, isName } from '../wire/names.js';
import { KeySet } from './key-set.js';
import { type Permissions, parsePermissions } from './permissions.js';

/** Clocks differ: a token that seems to come from the future by no more than this is good. */
const CLOCK_TOLERANCE_S = 5;
/** An expired token is shown the door at once; what is on its way just then still arrives. */
const EXPIRY_GRACE_MS = 2000;
const MAX_TOKEN_LENGTH = 16_384;
/** jose verifies nothing under a shorter one. */
const MIN_RSA_BITS = 2048;

/** Who somebody is, as its token says. */
export interface Identity {
  readonly tenant: string;
  readonly user: string;
  /** From the token; what a client claims beside it proves nothing. */
  readonly device: string | undefined;
  /** The token's own name (`jti`), by which it can be revoked, if it is one that can. */
  readonly tokenId: string | undefined;
  /** When the token was issued (`iat`), in ms since 1970: a user's tokens up to some time can be revoked. */
  readonly issuedAt: number | undefined;
  /** By a token that the relay gave to the device, in place of the issuer's. */
  readonly isByDeviceToken: boolean;
  /** When its socket must end, in ms since 1970: the token's `exp`, or 2 s later if it came in after that. */
  readonly expiresAt: number;
  readonly permissions: Permissions;
  /** Rooms that the socket is in from the start, as clients name them. */
  readonly rooms: readonly string[];
}

export interface TokenKey {
  readonly secret?: string | undefined;
  readonly publicKey?: string | undefined;
  readonly jwksUrl?: string | undefined;
  /** The one algorithm of a public key or key set; a secret is always HS256. */
  readonly algorithm: string;
}

/** Verifies tokens under one pinned key and algorithm, whatever the token says of itself. */
export class TokenVerifier {
  readonly #verify: (token: string) => Promise<{ payload: JWTPayload }>;

  /** @throws {FatalError} when the public key is none, or doesn't fit the algorithm: it would refuse everybody */
  constructor({ secret, publicKey, jwksUrl, algorithm }: TokenKey) {
    const options: JWTVerifyOptions = {
      algorithms: [secret === undefined ? algorithm : 'HS256'],
      requiredClaims: ['sub', 'exp'],
      clockTolerance: CLOCK_TOLERANCE_S,
    };
    if (secret !== undefined) {
      const key = new TextEncoder().encode(secret);
      this.#verify = (token) => jwtVerify(token, key, options);
    } else if (publicKey !== undefined) {
      const key = readPublicKey(publicKey, algorithm);
      this.#verify = (token) => jwtVerify(token, key, options);
    } else if (jwksUrl !== undefined) {
      const { find } = new KeySet(jwksUrl);
      this.#verify = (token) => jwtVerify(token, find, options);
    } else throw new FatalError('no key verifies tokens');
  }

  /**
   * @throws {RelayError} `unauthorized`, `token_expired`, or `unavailable` when the issuer's key set can't be had
   */
  async identify(token: unknown): Promise<Identity> {
    if (token === undefined || token === null || token === '')
      throw new RelayError('unauthorized', 'Missing authentication token');
    if (typeof token !== 'string' || token.length > MAX_TOKEN_LENGTH) throw new RelayError('unauthorized');
    let payload: JWTPayload;
    try {
      payload = (await this.#verify(token)).payload;
    } catch (error) {
      if (error instanceof RelayError) throw error;
      if (error instanceof errors.JWTExpired) throw new RelayError('token_expired', undefined, { cause: error });
      throw new RelayError(error instanceof errors.JOSEError ? 'unauthorized' : 'internal', undefined, {
        cause: error,
      });
    }
    if (hasDuplicateClaims(token)) throw new RelayError('unauthorized');
    return identityOf(payload);
  }
}

function readPublicKey(pem: string, algorithm: string): KeyObject {
  let key: KeyObject;
  try {
    key = createPublicKey(pem);
  } catch {
    throw new FatalError('HOLDFAST_JWT_PUBLIC_KEY: wants a PEM public key (SPKI)');
  }
  const wanted = keyOf(algorithm);
  const { asymmetricKeyType: type, asymmetricKeyDetails: { namedCurve, modulusLength } = {} } = key;
  const isLongEnough = type !== 'rsa' || (modulusLength ?? 0) >= MIN_RSA_BITS;
  if (type !== wanted.type || namedCurve !== wanted.curve || !isLongEnough) {
    const got = [type, namedCurve ?? (type === 'rsa' ? `of ${modulusLength} bits` : undefined)]
      .filter(Boolean)
      .join(' ');
    throw new FatalError(
      `HOLDFAST_JWT_PUBLIC_KEY: HOLDFAST_JWT_ALGORITHM=${algorithm} wants ${wanted.text}, and this key is ${got}`,
    );
  }
  return key;
}

/** The kind of key that an algorithm is for, in Node's words. */
function keyOf(algorithm: string): { readonly type: string; readonly curve?: string; readonly text: string } {
  const curve = { ES256: 'prime256v1', ES384: 'secp384r1', ES512: 'secp521r1' }[algorithm];
  if (curve !== undefined) return { type: 'ec', curve, text: `ec ${curve}` };
  if (algorithm === 'EdDSA') return { type: 'ed25519', text: 'ed25519' };
  return { type: 'rsa', text: `rsa of at least ${MIN_RSA_BITS} bits` };
}

function identityOf(payload: JWTPayload): Identity {
  const { sub: user, exp, iat, jti, tenant = 'default', device, caps } = payload;
  if (!isName(user) || !isName(tenant) || !(device === undefined || isName(device)) || typeof exp !== 'number')
    throw new RelayError('unauthorized');
  const now = Date.now();
  const end = exp * 1000;
  if (end + EXPIRY_GRACE_MS <= now) throw new RelayError('token_expired');
  // jose looks at `iat` only under a maximum age; a token from the future is nobody's
  if (iat !== undefined && !(typeof iat === 'number' && iat <= now / 1000 + CLOCK_TOLERANCE_S))
    throw new RelayError('unauthorized');
  const { rooms, permissions: defaults } = defaultsOf(tenant, user, device);
  const permissions = parsePermissions(caps, defaults);
  if (!permissions) throw new RelayError('unauthorized', 'Invalid authentication token: caps is malformed');
  return {
    tenant,
    user,
    device,
    tokenId: isName(jti) ? jti : undefined,
    issuedAt: iat === undefined ? undefined : iat * 1000,
    isByDeviceToken: false,
    expiresAt: end > now ? end : end + EXPIRY_GRACE_MS,
    permissions,
    rooms,
  };
}

/** What somebody has whose token says nothing of rooms and permissions. */
export function defaultsOf(
  tenant: string,
  user: string,
  device: string | undefined,
): Pick<Identity, 'rooms' | 'permissions'> {
  const rooms = [`user:${escapePart(user)}`, `tenant:${escapePart(tenant)}`];
  if (device !== undefined) rooms.push(`device:${escapePart(user)}/${escapePart(device)}`);
  const ownMethods = [`${escapePart(user)}/*`];
  return { rooms, permissions: { subscribe: rooms, publish: [], call: ownMethods, register: ownMethods } };
}

/** RFC 7519 wants claim names to be unique; which of two `exp` counts is nothing to guess. */
export function hasDuplicateClaims(token: string): boolean {
  const text = Buffer.from(token.split('.')[1] ?? '', 'base64url').toString('utf8');
  const names = new Set<string>();
  let depth = 0;
  let previous = '';
  for (const [part] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\]:,]/g)) {
    if (part === '{' || part === '[') depth++;
    else if (part === '}' || part === ']') depth--;
    else if (part === ':' && depth === 1) {
      const name = JSON.parse(previous) as string;
      if (names.has(name)) return true;
      names.add(name);
    }
    previous = part;
  }
  return false;
}
