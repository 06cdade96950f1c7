import type { ManagerOptions, SocketOptions } from 'socket.io-client';
import { RelayError } from '../core/errors.js';
import { memoryStore, type Store } from './stores.js';
import type { Token } from './token-source.js';

export interface ClientOptions {
  /** Of the relay, or of the balancer in front of it: `https://relay.example.com`. */
  readonly url: string;
  /**
   * A JWT, or what gives one. A function is asked again before the token ends and after a refusal; what it throws is told by
   * `error` and it is asked again, unless it is a `RelayError` that is not `retryable` (`unauthorized`), which closes the client.
   */
  readonly token: Token;
  /** Where the place is kept over a restart of this program; default: nowhere. */
  readonly store?: Store;
  /** `SOCKET_PATH` of the relay; default `/socket.io`. */
  readonly path?: string;
  /** More of the handshake's `auth`: `clientType`, `sessionId`, `machineId`. */
  readonly auth?: Readonly<Record<string, unknown>>;
  /** Events that a subscription may leave unhandled; default 1,000. */
  readonly bufferSize?: number;
  /** The store is written at most so often, in ms; default 250. What was handled since may come again after a crash. */
  readonly saveEveryMs?: number;
  /** A try to connect that takes longer begins anew, in ms; default 20,000. The relay holds some for 10 s. */
  readonly connectTimeoutMs?: number;
  /** Of a call's params, and of a result, in bytes; default 1,000,000. `HOLDFAST_RPC_MAX_PAYLOAD_BYTES` of the relay. */
  readonly maxPayloadBytes?: number;
  /**
   * The wait before the n-th try to reconnect is a random time up to `reconnectDelayMs` · 2ⁿ, at most `reconnectDelayMaxMs`;
   * defaults 500 and 20,000. A connection that lasted 5 s begins anew.
   */
  readonly reconnectDelayMs?: number;
  readonly reconnectDelayMaxMs?: number;
  /**
   * Events that are remembered to know what comes twice, after a failover or where a room's catch-up meets what the client had
   * missed; default 10,000, at least 1,000.
   */
  readonly rememberedEvents?: number;
  /** Closes the client. */
  readonly signal?: AbortSignal;
  /** For `socket.io-client`: `extraHeaders`, `agent` and the like. */
  readonly socketOptions?: Partial<ManagerOptions & SocketOptions>;
}

export type Settings = Readonly<Required<Omit<ClientOptions, 'signal'>>>;

/** @throws {RelayError} `bad_request`, naming the option */
export function settle(options: ClientOptions): Settings {
  const { url, token } = options;
  if (!/^(https?|wss?):\/\//.test(url)) throw new RelayError('bad_request', `url: wants https://…, got ${url}`);
  if (typeof token !== 'function' && (typeof token !== 'string' || token === ''))
    throw new RelayError('bad_request', 'token: wants a text or a function');
  return Object.freeze({
    url,
    token,
    store: options.store ?? memoryStore(),
    path: options.path ?? '/socket.io',
    auth: options.auth ?? {},
    bufferSize: wholeNumber('bufferSize', options.bufferSize ?? 1000, 1),
    saveEveryMs: wholeNumber('saveEveryMs', options.saveEveryMs ?? 250, 0),
    connectTimeoutMs: wholeNumber('connectTimeoutMs', options.connectTimeoutMs ?? 20_000, 1),
    maxPayloadBytes: wholeNumber('maxPayloadBytes', options.maxPayloadBytes ?? 1_000_000, 1),
    reconnectDelayMs: wholeNumber('reconnectDelayMs', options.reconnectDelayMs ?? 500, 1),
    reconnectDelayMaxMs: wholeNumber('reconnectDelayMaxMs', options.reconnectDelayMaxMs ?? 20_000, 1),
    rememberedEvents: wholeNumber('rememberedEvents', options.rememberedEvents ?? 10_000, 1000),
    socketOptions: options.socketOptions ?? {},
  });
}

export function wholeNumber(name: string, value: number, min: number, max = 2 ** 31 - 1): number {
  if (Number.isInteger(value) && value >= min && value <= max) return value;
  throw new RelayError('bad_request', `${name}: wants a whole number from ${min} to ${max}, got ${value}`);
}
