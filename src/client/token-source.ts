import { RelayError } from '../core/errors.js';

/** A JWT, or what gives one: asked before a connect, before the token at hand ends, and after it was refused. */
export type Token = string | (() => string | Promise<string>);

interface Claims {
  readonly exp?: unknown;
  readonly iat?: unknown;
  readonly caps?: unknown;
}

const MAX_MARGIN_MS = 60_000;
/** A clock that is further from the issuer's is wrong, and only the token's own span counts. */
const MAX_SKEW_MS = 60_000;
const MAX_REFUSED = 8;

/** The token at hand, and when the next one is wanted. Nothing is verified here; the last that were refused are not sent again. */
export class TokenSource {
  #token: string | undefined;
  /** `performance.now()` when it ends. */
  #endsAt = Number.POSITIVE_INFINITY;
  #lifeMs = Number.POSITIVE_INFINITY;
  readonly #refused = new Map<string, RelayError>();

  constructor(private readonly source: Token) {}

  /** There is no other one. */
  get isOnly(): boolean {
    return typeof this.source === 'string';
  }

  /** @throws {RelayError} why the only token that there is was refused; `unauthorized` when there is none; see `next` */
  async get(): Promise<string> {
    const isGood = this.#token !== undefined && performance.now() < this.#endsAt;
    return isGood ? (this.#token as string) : this.fetch();
  }

  /**
   * Another one, which becomes the one at hand by `accept`.
   *
   * @throws {RelayError} what it was refused with; `unavailable` for one of a function's that had expired, as it may keep a
   * token for a while
   */
  async next(): Promise<string> {
    const token = typeof this.source === 'string' ? this.source : await this.source();
    if (typeof token !== 'string' || token === '') throw new RelayError('unauthorized', 'Missing authentication token');
    const refusal = this.#refused.get(token);
    if (refusal?.code === 'token_expired' && !this.isOnly)
      throw new RelayError('unavailable', 'the token that is given has expired', { cause: refusal });
    if (refusal) throw refusal;
    return token;
  }

  async fetch(): Promise<string> {
    const token = await this.next();
    this.accept(token);
    return token;
  }

  accept(token: string): void {
    if (token === this.#token) return;
    this.#token = token;
    this.#lifeMs = lifeOf(claimsOf(token), Date.now());
    this.#endsAt = performance.now() + this.#lifeMs;
  }

  /** The relay doesn't take it, or not any longer. */
  refuse(token: string, error: RelayError): void {
    this.#refused.set(token, error);
    if (this.#refused.size > MAX_REFUSED) this.#refused.delete(this.#refused.keys().next().value as string);
    if (token === this.#token) this.#token = undefined;
  }

  /** What the relay said of a token, and not the one who gives it. */
  isRefusal(error: RelayError): boolean {
    return [...this.#refused.values()].includes(error);
  }

  /** How long until the next one should be fetched; `undefined`: there is none to be had, or no need. */
  get renewInMs(): number | undefined {
    if (typeof this.source === 'string' || !Number.isFinite(this.#lifeMs)) return undefined;
    return Math.max(0, this.#endsAt - performance.now() - Math.min(MAX_MARGIN_MS, this.#lifeMs * 0.2));
  }
}

/** What a token lets its bearer do, as text to compare; `undefined` if it can't be read. */
export function permissionsOf(token: string): string | undefined {
  const claims = claimsOf(token);
  return claims && JSON.stringify(claims.caps ?? null);
}

function lifeOf(claims: Claims | undefined, now: number): number {
  if (typeof claims?.exp !== 'number') return Number.POSITIVE_INFINITY;
  const left = claims.exp * 1000 - now;
  if (typeof claims.iat !== 'number') return left;
  const isClockWrong = left <= 0 || now < claims.iat * 1000 - MAX_SKEW_MS;
  return isClockWrong ? (claims.exp - claims.iat) * 1000 : left;
}

function claimsOf(token: string): Claims | undefined {
  const [, body] = token.split('.');
  try {
    const bytes = Uint8Array.from(atob((body ?? '').replaceAll('-', '+').replaceAll('_', '/')), (c) => c.charCodeAt(0));
    const claims: unknown = JSON.parse(new TextDecoder().decode(bytes));
    return typeof claims === 'object' && claims !== null ? claims : undefined;
  } catch {
    return undefined;
  }
}
