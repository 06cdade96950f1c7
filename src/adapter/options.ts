import type { Registry } from 'prom-client';
import { z } from 'zod';
import type { Logger } from '../core/ports.js';

const MB = 1024 * 1024;

/** What the streams adapter has and this one needs no more: accepted, so that a migration changes one import, and named once. */
const OBSOLETE = [
  'channelPrefix',
  'useShardedPubSub',
  'readCount',
  'blockTimeInMs',
  'sessionKeyPrefix',
  'heartbeatInterval',
  'heartbeatTimeout',
  'onlyPlaintext',
] as const;

export interface AdapterOptions {
  /** Servers with the same name hear each other; others don't. Default `socket.io`. */
  readonly streamName?: string;
  /** Partitions of the log; a namespace is in one of them. Fixed at the first start. Default 1. */
  readonly streamCount?: number;
  /** Entries that are kept for clients who come back, per partition; hard cap: twice that. Default 100,000. */
  readonly maxLen?: number;
  /** Bytes that are kept, per partition; hard cap: twice that. Default 64 MB. */
  readonly maxBytes?: number;
  /** Older entries are trimmed, in ms. Default 1 h. */
  readonly maxAgeMs?: number;
  /** Recent entries in this process's memory, from which clients who come back are served, per partition. Default 32 MB. */
  readonly ringBytes?: number;
  /** A client whose connection takes nothing for so long is closed, in ms; it may resume. Default 5 s. */
  readonly slowReaderMs?: number;
  /** How long `fetchSockets` and `serverSideEmit` wait for other servers, in ms. Default 5 s. */
  readonly requestsTimeout?: number;
  /**
   * What becomes of a broadcast while Redis can't take it: `local` = this server's own sockets get it, at most once, as with
   * the streams adapter; `drop` = nobody does. Either is counted. Default `local`.
   */
  readonly whenUnavailable?: 'local' | 'drop';
  /**
   * While servers with `@socket.io/redis-streams-adapter` still run: events, joins, leaves, disconnects and requests go to
   * them and come from them. `'socket.io'` if they have that adapter's default options. Default: none.
   */
  readonly bridge?: 'socket.io' | BridgeOptions;
  /** Warnings and errors go there; pino has this shape. Default: stderr, one line each. */
  readonly logger?: Logger;
  /** A registry of prom-client, to which the adapter's metrics are added. */
  readonly registry?: Registry;

  /** @deprecated accepted from the streams adapter, without effect */
  readonly channelPrefix?: string;
  /** @deprecated accepted from the streams adapter, without effect */
  readonly useShardedPubSub?: boolean;
  /** @deprecated accepted from the streams adapter, without effect */
  readonly readCount?: number;
  /** @deprecated accepted from the streams adapter, without effect */
  readonly blockTimeInMs?: number;
  /** @deprecated accepted from the streams adapter, without effect */
  readonly sessionKeyPrefix?: string;
  /** @deprecated accepted from the streams adapter, without effect */
  readonly heartbeatInterval?: number;
  /** @deprecated accepted from the streams adapter, without effect */
  readonly heartbeatTimeout?: number;
  /** @deprecated accepted from the streams adapter, without effect */
  readonly onlyPlaintext?: boolean;
}

/** As the old servers have it. */
export interface BridgeOptions {
  /** Default `socket.io`. */
  readonly streamName?: string;
  /** Default `socket.io`. */
  readonly channelPrefix?: string;
  /** Default 1. */
  readonly streamCount?: number;
  /** Entries that are kept in the old stream, about. Default 10,000. */
  readonly maxLen?: number;
}

const integer = (min: number, max: number) => z.number().int().min(min).max(max);

const BRIDGE = z.strictObject(
  {
    streamName: z.string().min(1).default('socket.io'),
    channelPrefix: z.string().min(1).default('socket.io'),
    streamCount: integer(1, 1024).default(1),
    maxLen: integer(1, 100_000_000).default(10_000),
  },
  { error: ({ code }) => (code === 'invalid_type' ? "wants 'socket.io' or an object" : undefined) },
);

export type BridgeSettings = Readonly<z.infer<typeof BRIDGE>>;

const SCHEMA = z.object({
  streamName: z
    .string()
    .regex(/^[\w:.-]{1,64}$/, 'wants 1 to 64 of the characters A–Z a–z 0–9 _ : . -')
    .default('socket.io'),
  streamCount: integer(1, 1024).default(1),
  // the log is cut by sixteenths
  maxLen: integer(1, 100_000_000)
    .transform((entries) => Math.max(160, entries))
    .default(100_000),
  maxBytes: integer(MB, 2 ** 40).default(64 * MB),
  maxAgeMs: integer(1000, 365 * 86_400_000).default(3_600_000),
  ringBytes: integer(64 * 1024, 2 ** 34).default(32 * MB),
  slowReaderMs: integer(100, 3_600_000).default(5000),
  requestsTimeout: integer(1, 3_600_000).default(5000),
  whenUnavailable: z.enum(['local', 'drop']).default('local'),
  bridge: z.preprocess((given) => (given === 'socket.io' ? {} : given), BRIDGE).optional(),
  logger: z.custom<Logger>((value) => typeof (value as Logger | null)?.warn === 'function').optional(),
  registry: z.custom<Registry>((value) => typeof (value as Registry | null)?.registerMetric === 'function').optional(),
});

export interface AdapterSettings extends Readonly<z.infer<typeof SCHEMA>> {
  readonly logger: Logger;
}

/** @throws {TypeError} that names the option, what was given and what is wanted */
export function settingsOf(options: AdapterOptions): AdapterSettings {
  const { error, data } = SCHEMA.safeParse(options);
  if (error) {
    const [issue] = error.issues;
    const path = issue?.path ?? [];
    const got = path.reduce<unknown>(
      (value, key) => (value as Record<PropertyKey, unknown> | undefined)?.[key],
      options,
    );
    throw new TypeError(`createAdapter: ${path.join('.')}: ${issue?.message} (got ${shown(got)})`);
  }
  const logger = data.logger ?? stderrLogger;
  const known = new Set<string>([...Object.keys(SCHEMA.shape), ...OBSOLETE]);
  const given = Object.keys(options);
  const obsolete = given.filter((name) => OBSOLETE.some((old) => old === name));
  const unknown = given.filter((name) => !known.has(name));
  if (obsolete.length > 0) logger.info({ event: 'adapter_options' }, `without effect: ${obsolete.join(', ')}`);
  if (unknown.length > 0) logger.warn({ event: 'adapter_options' }, `unknown options: ${unknown.join(', ')}`);
  return Object.freeze({ ...data, logger });
}

function shown(value: unknown): string {
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return Object.prototype.toString.call(value);
  }
}

/** One line for what somebody should look at. */
const stderrLogger: Logger = {
  debug() {},
  info() {},
  warn: (_fields, message) => say(message),
  error: (fields, message) => say(message, (fields as { err?: unknown }).err),
};

function say(message: string, error?: unknown): void {
  process.stderr.write(`holdfast: ${message}${error instanceof Error ? `: ${error.message}` : ''}\n`);
}
