import type { Scope } from './scopes.js';

/** Times are in ms since 1970, by the database's clock. */
export interface Tenant {
  readonly tenant: string;
  readonly status: 'active' | 'archived';
  readonly createdAt: number;
  readonly changedAt: number;
}

export interface DeviceName {
  readonly tenant: string;
  readonly user: string;
  readonly device: string;
}

export interface Device extends DeviceName {
  /** It was given a token of the relay's; without one its tokens are the issuer's. */
  readonly hasToken: boolean;
  /** Of the token, if it has one. */
  readonly createdAt: number;
  readonly pairedAt?: number;
  readonly revokedAt?: number;
}

/** An API key of the database; the key itself is known to nobody but whom it was given to. */
export interface KeyEntry {
  readonly id: string;
  /** The one tenant that it speaks for; absent: all. */
  readonly tenant?: string;
  readonly scopes: readonly Scope[];
  readonly label: string;
  readonly createdAt: number;
  readonly expiresAt?: number;
  readonly revokedAt?: number;
}

/** What a change was about, and whether nothing was known of it before: its name may be misspelt. */
export type Changed<Row> = Row & { readonly isNew: boolean };

export interface Page<Row> {
  readonly rows: readonly Row[];
  /** Give it as `after` for the next page; absent: this was the last. */
  readonly next?: string;
}

export interface PageOptions {
  /** What the page before called `next`. */
  readonly after?: string | undefined;
  /** 1 to 1000; default 100. */
  readonly limit?: number | undefined;
}

export interface NewDevice extends DeviceName {
  /** Default true. */
  readonly isPaired?: boolean | undefined;
  /** A token that it has stops to be good; without this, one that has a token keeps it, and is a `conflict`. */
  readonly isReplacing?: boolean | undefined;
}

export interface NewKey {
  readonly scopes: readonly Scope[];
  readonly tenant?: string | undefined;
  /** At most 200 characters, for people. */
  readonly label?: string | undefined;
  readonly expiresAt?: number | undefined;
}

/** One token by its `jti`, or all tokens of a user up to a time, the tokens of the user's devices among them. */
export type Revocation = {
  readonly tenant: string;
  /** When all of them have expired, and the revocation may be forgotten; default: never. */
  readonly expiresAt?: number | undefined;
} & (
  | {
      readonly user: string;
      /** Issued then or before; default: now. The latest of several counts. */
      readonly before?: number | undefined;
    }
  | { readonly token: string }
);

/**
 * The tenants, devices, API keys and revocations that admission goes by. A tenant or device that nothing is known of is a good
 * one, so one can be archived or revoked that was never created.
 *
 * Changes that are made already are made: the answer is the same. `undefined` stands for what is not there. Lists are by name.
 *
 * All of them throw {RelayError} `bad_request` for what is no name, and `unavailable` when the database doesn't answer: then a
 * change may have happened. What comes with a secret is not to be repeated blindly: the secret is told once.
 */
export interface Directory {
  /** @throws {RelayError} `conflict` when it is archived */
  createTenant(tenant: string): Promise<Changed<Tenant>>;
  tenant(tenant: string): Promise<Tenant | undefined>;
  archiveTenant(tenant: string): Promise<Changed<Tenant>>;
  restoreTenant(tenant: string): Promise<Tenant | undefined>;
  listTenants(options?: PageOptions): Promise<Page<Tenant>>;

  /**
   * A device with a new token, also one that was revoked.
   *
   * @throws {RelayError} `conflict` when it has a token
   */
  createDevice(device: NewDevice): Promise<Device & { readonly token: string }>;
  /** @throws {RelayError} `conflict` when it is revoked */
  pairDevice(device: DeviceName): Promise<Changed<Device>>;
  unpairDevice(device: DeviceName): Promise<Device | undefined>;
  /** Final for the tokens that it has. */
  revokeDevice(device: DeviceName): Promise<Changed<Device>>;
  listDevices(tenant: string, options?: PageOptions & { readonly user?: string | undefined }): Promise<Page<Device>>;

  createKey(key: NewKey): Promise<KeyEntry & { readonly key: string }>;
  /** Final. */
  revokeKey(id: string): Promise<KeyEntry | undefined>;
  listKeys(options?: PageOptions & { readonly tenant?: string | undefined }): Promise<Page<KeyEntry>>;

  /** Final. */
  revokeTokens(revocation: Revocation): Promise<void>;
}
