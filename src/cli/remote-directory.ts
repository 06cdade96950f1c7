import type {
  Changed,
  Device,
  DeviceName,
  Directory,
  KeyEntry,
  NewDevice,
  NewKey,
  Page,
  PageOptions,
  Revocation,
  Tenant,
} from '../admission/index.js';
import { ERROR_CODES, type ErrorCode, FatalError, RelayError } from '../core/errors.js';
import { isName } from '../wire/names.js';

/** A relay answers within 2 s, or not at all. */
const ANSWER_MS = 10_000;

type Parameters = Readonly<Record<string, string | number | undefined>>;

/** The directory of a relay that is asked over HTTP: its database may be one that only it can open. */
export class RemoteDirectory implements Directory {
  /** @param apiKey with the scope `admin` */
  constructor(
    private readonly url: string,
    private readonly apiKey: string,
  ) {}

  async createTenant(tenant: string): Promise<Changed<Tenant>> {
    return await this.#must('POST', '/v1/tenants', { body: { tenant } });
  }

  tenant(tenant: string): Promise<Tenant | undefined> {
    return this.#find('GET', pathOf('tenants', tenant));
  }

  archiveTenant(tenant: string): Promise<Changed<Tenant>> {
    return this.#must('POST', pathOf('tenants', tenant, 'archive'));
  }

  restoreTenant(tenant: string): Promise<Tenant | undefined> {
    return this.#find('POST', pathOf('tenants', tenant, 'restore'));
  }

  async listTenants(options: PageOptions = {}): Promise<Page<Tenant>> {
    const { tenants: rows, next } = await this.#list<'tenants', Tenant>('/v1/tenants', { ...options });
    return { rows, next };
  }

  createDevice({ tenant, user, device, isPaired: paired, isReplacing: replace }: NewDevice) {
    return this.#must<Device & { readonly token: string }>('POST', pathOf('tenants', tenant, 'devices'), {
      body: { user, device, paired, replace },
    });
  }

  pairDevice(name: DeviceName): Promise<Changed<Device>> {
    return this.#must('POST', pathOfDevice(name, 'pair'));
  }

  unpairDevice(name: DeviceName): Promise<Device | undefined> {
    return this.#find('POST', pathOfDevice(name, 'unpair'));
  }

  revokeDevice(name: DeviceName): Promise<Changed<Device>> {
    return this.#must('POST', pathOfDevice(name, 'revoke'));
  }

  async listDevices(tenant: string, options: PageOptions & { readonly user?: string | undefined } = {}) {
    const path = pathOf('tenants', tenant, 'devices');
    const { devices: rows, next } = await this.#list<'devices', Device>(path, { ...options });
    return { rows, next };
  }

  createKey(key: NewKey) {
    return this.#must<KeyEntry & { readonly key: string }>('POST', '/v1/keys', { body: key });
  }

  revokeKey(id: string): Promise<KeyEntry | undefined> {
    return this.#find('POST', pathOf('keys', id, 'revoke'));
  }

  async listKeys(options: PageOptions & { readonly tenant?: string | undefined } = {}): Promise<Page<KeyEntry>> {
    const { keys: rows, next } = await this.#list<'keys', KeyEntry>('/v1/keys', { ...options });
    return { rows, next };
  }

  async revokeTokens({ tenant, ...body }: Revocation): Promise<void> {
    await this.#must('POST', pathOf('tenants', tenant, 'revocations'), { body });
  }

  #list<Name extends string, Row>(path: string, parameters: Parameters) {
    return this.#must<Record<Name, readonly Row[]> & { next?: string }>('GET', path, { parameters });
  }

  /** For what is there in every relay that has a database. */
  async #must<T>(method: string, path: string, more: { body?: unknown; parameters?: Parameters } = {}): Promise<T> {
    const answer = await this.#ask<T>(method, path, more);
    if (answer !== undefined) return answer;
    throw new FatalError(`the relay at ${this.url} has no database, and so no tenants, devices and keys`);
  }

  /** For what may not be there. A relay without a database has no such path at all. */
  async #find<T>(method: string, path: string): Promise<T | undefined> {
    const answer = await this.#ask<T>(method, path);
    if (answer === undefined) await this.#must('GET', '/v1/tenants', { parameters: { limit: 1 } });
    return answer;
  }

  /** `undefined`: 404 */
  async #ask<T>(
    method: string,
    path: string,
    { body, parameters = {} }: { body?: unknown; parameters?: Parameters } = {},
  ): Promise<T | undefined> {
    const url = new URL(this.url + path);
    for (const [name, value] of Object.entries(parameters))
      if (value !== undefined) url.searchParams.set(name, String(value));
    let status: number;
    let answer: unknown;
    try {
      const response = await fetch(url, {
        method,
        headers: {
          authorization: `Bearer ${this.apiKey}`,
          ...(body !== undefined && { 'content-type': 'application/json' }),
        },
        ...(body !== undefined && { body: JSON.stringify(body) }),
        redirect: 'error',
        signal: AbortSignal.timeout(ANSWER_MS),
      });
      status = response.status;
      answer = await response.json();
    } catch (error) {
      const { cause = error } = error as Error;
      throw new RelayError('unavailable', `the relay at ${this.url} cannot be asked: ${(cause as Error).message}`);
    }
    if (status === 200) return answer as T;
    if (status === 404) return undefined;
    const { code, error } = answer as { code?: unknown; error?: unknown };
    if (typeof code !== 'string' || !Object.hasOwn(ERROR_CODES, code))
      throw new FatalError(`what answers at ${this.url} is no relay: HTTP ${status}`);
    throw new RelayError(code as ErrorCode, String(error));
  }
}

/**
 * @throws {RelayError} `bad_request` for what is no name
 * @throws {FatalError} for the two names that no path can hold, however they are escaped
 */
function pathOf(...parts: readonly string[]): string {
  for (const part of parts) {
    if (!isName(part))
      throw new RelayError('bad_request', 'a name wants 1 to 200 characters without control characters');
    if (/^\.\.?$/.test(part))
      throw new FatalError(`${JSON.stringify(part)} cannot be named over HTTP: say which Postgres with DATABASE_URL`);
  }
  return `/v1/${parts.map(encodeURIComponent).join('/')}`;
}

function pathOfDevice({ tenant, user, device }: DeviceName, verb: string): string {
  return pathOf('tenants', tenant, 'devices', user, device, verb);
}
