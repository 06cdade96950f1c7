import { RelayError } from '../core/errors.js';
import type { DeviceTokens } from './device-tokens.js';
import type { Identity, TokenVerifier } from './identity.js';
import { DEVICE_TOKEN_PREFIX } from './secret-text.js';

export interface AuthenticatorOptions {
  readonly verifier: TokenVerifier;
  /** `undefined`: there is no database, and no device has a token of the relay's. */
  readonly deviceTokens: DeviceTokens | undefined;
}

/** Proves who a client is: by a token of the issuer's, or by one that the relay gave to a device. */
export class Authenticator {
  constructor(private readonly options: AuthenticatorOptions) {}

  /** What it takes to prove this token: a query, or a computation. */
  asksDatabase(token: unknown): boolean {
    return (
      this.options.deviceTokens !== undefined && typeof token === 'string' && token.startsWith(DEVICE_TOKEN_PREFIX)
    );
  }

  /**
   * @param signal whoever asks has gone
   * @throws {RelayError} `unauthorized`, `token_expired`, or `unavailable` when a token can be neither proved nor refused
   */
  async identify(token: unknown, signal?: AbortSignal): Promise<Identity> {
    const { verifier, deviceTokens } = this.options;
    // an issuer's token is JSON in base64, which begins with "ey"
    if (typeof token !== 'string' || !token.startsWith(DEVICE_TOKEN_PREFIX)) return verifier.identify(token);
    if (!deviceTokens)
      throw new RelayError('unauthorized', 'device tokens are not known here: the relay has no database');
    return deviceTokens.identify(token, signal);
  }
}
