import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { z } from 'zod';
import { parseDuration } from './core/duration.js';
import { FatalError } from './core/errors.js';
import { isName } from './wire/names.js';

/** One API key of the environment. A key without a tenant speaks for all of them. */
export interface ApiKey {
  readonly key: string;
  readonly tenant: string | undefined;
}

function duration(min: number, max: number) {
  return z.string().transform((text, context) => {
    const ms = parseDuration(text);
    if (ms !== undefined && ms >= min && ms <= max) return ms;
    context.addIssue({ code: 'custom', message: `a duration such as 1500, 30s or 5m, from ${min} to ${max} ms` });
    return z.NEVER;
  });
}

function integer(min: number, max: number) {
  return z.string().transform((text, context) => {
    const value = /^\d+$/.test(text.trim()) ? Number(text) : Number.NaN;
    if (value >= min && value <= max) return value;
    context.addIssue({ code: 'custom', message: `a whole number from ${min} to ${max}` });
    return z.NEVER;
  });
}

const list = z.string().transform((text) =>
  text
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== ''),
);

const oneOf = (values: readonly string[]): z.ZodType<string, string> => z.enum(values, `one of ${values.join(', ')}`);
const text = z.string().min(1, 'a text');
const flag = z.enum(['on', 'off'], 'on or off').transform((value) => value === 'on');
const name = z.string().refine(isName, 'a name of 1 to 200 characters without control characters');

const url = z.string().superRefine((value, context) => {
  if (/^redis(s)?:\/\/[^,]+$/.test(value) && URL.canParse(value)) return;
  const other = value.includes(',') || /^redis\+sentinel:/.test(value);
  context.addIssue({
    code: 'custom',
    message: other
      ? 'one Redis, redis:// or rediss://: Redis Cluster and Sentinel are not supported yet'
      : 'redis://[user:password@]host:port[/db] or rediss://…',
  });
});

const databaseUrl = z.string().superRefine((value, context) => {
  if (/^postgres(ql)?:\/\/[^,]+$/.test(value) && URL.canParse(value)) return;
  context.addIssue({ code: 'custom', message: 'postgres://[user:password@]host:port/database' });
});

/** What is fetched without credentials: it is no secret, and is printed. */
function isPlainHttpUrl(value: string): boolean {
  if (!URL.canParse(value)) return false;
  const { protocol, username, password } = new URL(value);
  return /^https?:$/.test(protocol) && username === '' && password === '';
}

const apiKeys = z.string().transform((value, context) => {
  const keys: ApiKey[] = [];
  for (const item of value.split(',')) {
    const [key = '', ...rest] = item.trim().split(':');
    const tenant = rest.length > 0 ? rest.join(':') : undefined;
    if (key.length < 32 || (tenant !== undefined && !isName(tenant)))
      context.addIssue({ code: 'custom', message: 'key[:tenant], by commas, each key at least 32 characters' });
    else keys.push({ key, tenant });
  }
  return keys;
});

interface Option<T> {
  readonly env: string;
  readonly schema: z.ZodType<T, string>;
  readonly initial: T;
  readonly secret: boolean;
  /** For `docs/operations.md` and `holdfast check`. */
  readonly about: string;
}

function option<T>(env: string, schema: z.ZodType<T, string>, initial: NoInfer<T>, about: string): Option<T> {
  return { env, schema, initial, secret: false, about };
}

function secret<T>(env: string, schema: z.ZodType<T, string>, initial: NoInfer<T>, about: string): Option<T> {
  return { env, schema, initial, secret: true, about };
}

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const MB = 1024 * 1024;

/** Every setting of the relay, in the order in which the docs print them. */
export const OPTIONS = {
  port: option('PORT', integer(0, 65_535), 3000, 'public listener: Socket.IO, HTTP API'),
  host: option('HOLDFAST_HOST', text, '0.0.0.0', 'address of the public listener'),
  opsPort: option('OPS_PORT', integer(0, 65_535), 3001, 'private listener: probes, status, metrics'),
  opsHost: option('HOLDFAST_OPS_HOST', text, '0.0.0.0', 'address of the private listener'),
  redisUrl: secret<string | undefined>('REDIS_URL', url, undefined, 'the Redis of the log; unset = a private one'),
  databaseUrl: secret<string | undefined>(
    'DATABASE_URL',
    databaseUrl,
    undefined,
    'the Postgres of admission; unset = a private one beside a private Redis, else none',
  ),
  migrate: option(
    'HOLDFAST_MIGRATE',
    flag,
    true,
    'bring the schema up to date at start; off = refuse to start on an old one',
  ),
  dataDir: option('HOLDFAST_DATA_DIR', text, '.holdfast', 'folder of the private Redis and Postgres and their secrets'),
  pod: option('HOLDFAST_POD', name, hostname(), "this pod's name, stable over restarts and unique among live pods"),
  partitions: option<number | undefined>(
    'HOLDFAST_PARTITIONS',
    integer(1, 1024),
    undefined,
    'partitions of the topic `events`; fixed at its first start (then 1 if unset)',
  ),
  keyPrefix: option(
    'HOLDFAST_REDIS_PREFIX',
    z.string().regex(/^[\w:.-]{1,64}$/, '1 to 64 of the characters A–Z a–z 0–9 _ : . -'),
    'hf:',
    'before every key in Redis',
  ),
  socketPath: option('SOCKET_PATH', z.string().regex(/^\/\S*$/, 'a path'), '/socket.io', 'path of Socket.IO'),
  logLevel: option(
    'LOG_LEVEL',
    oneOf(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']),
    'info',
    'least level that is logged; with a private Redis `warn` if unset',
  ),
  drainMs: option(
    'HOLDFAST_DRAIN_MS',
    duration(0, 10 * MINUTE),
    30 * SECOND,
    'from SIGTERM until all clients are told to leave',
  ),

  jwtSecret: secret<string | undefined>(
    'HOLDFAST_JWT_SECRET',
    z.string().min(32, 'at least 32 characters'),
    undefined,
    'verifies tokens with HS256',
  ),
  // public, but a private key set here by mistake must not be printed
  jwtPublicKey: secret<string | undefined>(
    'HOLDFAST_JWT_PUBLIC_KEY',
    z.string().includes('-----BEGIN PUBLIC KEY-----', 'a PEM public key (SPKI)'),
    undefined,
    'verifies tokens with HOLDFAST_JWT_ALGORITHM',
  ),
  jwtJwksUrl: option<string | undefined>(
    'HOLDFAST_JWT_JWKS_URL',
    z.string().refine(isPlainHttpUrl, 'an http(s) URL without user and password'),
    undefined,
    "the issuer's key set, for HOLDFAST_JWT_ALGORITHM",
  ),
  jwtAlgorithm: option<string>(
    'HOLDFAST_JWT_ALGORITHM',
    oneOf(['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'ES512', 'EdDSA']),
    'RS256',
    'the one algorithm of a public key or key set',
  ),
  apiKeys: secret<readonly ApiKey[]>('HOLDFAST_API_KEYS', apiKeys, [], 'bearer keys of the HTTP API: key[:tenant], …'),

  admissionOnError: option<string>(
    'HOLDFAST_ADMISSION_ON_ERROR',
    oneOf(['open', 'closed']),
    'open',
    'whoever is proven but whose status Postgres cannot say: let in, or sent away to come back',
  ),
  admissionStrict: option('HOLDFAST_ADMISSION_STRICT', flag, false, 'a tenant without a row is inactive'),
  admissionRevalidateMs: option(
    'HOLDFAST_ADMISSION_REVALIDATE_MS',
    duration(SECOND, HOUR),
    30 * SECOND,
    'open sockets are checked again that often',
  ),
  admissionPool: option('HOLDFAST_ADMISSION_POOL', integer(1, 100), 4, 'connections to Postgres that serve'),
  singleSession: option<string>(
    'HOLDFAST_SINGLE_SESSION',
    oneOf(['off', 'device']),
    'device',
    'one connection for each device that a token names, over all pods',
  ),
  settleMs: option(
    'HOLDFAST_SETTLE_MS',
    duration(0, MINUTE),
    2500,
    'a device whose connection is alive keeps it for that long against a new one',
  ),
  flapMax: option('HOLDFAST_ADMISSION_FLAP_MAX', integer(1, 10_000), 20, 'connects of a device within the flap window'),
  flapMs: option('HOLDFAST_ADMISSION_FLAP_MS', duration(SECOND, DAY), 5 * MINUTE, 'the flap window'),
  reconnectMax: option(
    'HOLDFAST_ADMISSION_RECONNECT_MAX',
    integer(1, 10_000),
    5,
    'connects of a device within the reconnect window',
  ),
  reconnectMs: option('HOLDFAST_ADMISSION_RECONNECT_MS', duration(SECOND, HOUR), 10 * SECOND, 'the reconnect window'),
  warmupMax: option(
    'HOLDFAST_ADMISSION_WARMUP_MAX',
    integer(1, 10_000),
    20,
    'in place of HOLDFAST_ADMISSION_RECONNECT_MAX while the cluster warms up',
  ),
  warmupMs: option(
    'HOLDFAST_ADMISSION_WARMUP_MS',
    duration(0, HOUR),
    30 * SECOND,
    'so long the cluster warms up after a pod started, drained or died',
  ),
  loopMs: option(
    'HOLDFAST_ADMISSION_LOOP_MS',
    duration(SECOND, HOUR),
    MINUTE,
    'two living clients of one device take it from each other at most twice in that time',
  ),
  connectsPerSecond: option(
    'HOLDFAST_ADMISSION_CONNECTS_PER_SECOND',
    integer(1, 1_000_000),
    50,
    'per address, with HOLDFAST_TRUST_PROXY; a burst: ten times that',
  ),
  trustProxy: option<number | undefined>(
    'HOLDFAST_TRUST_PROXY',
    integer(0, 10),
    undefined,
    'proxies before this pod that set X-Forwarded-For; 0 = none; unset = not known, and nothing counts per address',
  ),

  logMaxEntries: option(
    'HOLDFAST_LOG_MAX_ENTRIES',
    integer(160, 100_000_000),
    100_000,
    'per partition; hard cap: twice that',
  ),
  logMaxBytes: option('HOLDFAST_LOG_MAX_BYTES', integer(MB, 2 ** 40), 64 * MB, 'per partition; hard cap: twice that'),
  logMaxAgeMs: option('HOLDFAST_LOG_MAX_AGE_MS', duration(SECOND, 365 * DAY), HOUR, 'older entries are trimmed'),
  logTrimMs: option('HOLDFAST_LOG_TRIM_MS', duration(100, HOUR), 10 * SECOND, 'between two trims of a partition'),
  logReapMs: option(
    'HOLDFAST_LOG_REAP_MS',
    duration(SECOND, 30 * DAY),
    10 * MINUTE,
    'a pod silent for longer loses its group',
  ),
  logIdWindowMs: option(
    'HOLDFAST_LOG_ID_WINDOW_MS',
    duration(SECOND, HOUR),
    2 * MINUTE,
    'how long an idempotency id is kept',
  ),

  recoveryWindowMs: option(
    'HOLDFAST_GATEWAY_RECOVERY_WINDOW_MS',
    duration(0, DAY),
    2 * MINUTE,
    'a lost connection may be resumed for that long',
  ),
  positionHeartbeatMs: option(
    'HOLDFAST_GATEWAY_POSITION_HEARTBEAT_MS',
    duration(SECOND, HOUR),
    45 * SECOND,
    'an idle socket hears its position that often',
  ),
  maxPayloadBytes: option('HOLDFAST_GATEWAY_MAX_PAYLOAD_BYTES', integer(1024, 16 * MB), 1_000_000, 'of one event'),
  pingIntervalMs: option(
    'HOLDFAST_GATEWAY_PING_INTERVAL_MS',
    duration(100, 30 * SECOND),
    25 * SECOND,
    'Socket.IO ping',
  ),
  pingTimeoutMs: option('HOLDFAST_GATEWAY_PING_TIMEOUT_MS', duration(100, 5 * MINUTE), 20 * SECOND, 'Socket.IO pong'),
  ringBytes: option(
    'HOLDFAST_GATEWAY_RING_BYTES',
    integer(64 * 1024, 2 ** 34),
    32 * MB,
    'recent entries in memory, per partition',
  ),
  messagesPerSecond: option(
    'HOLDFAST_GATEWAY_MESSAGES_PER_SECOND',
    integer(1, 1_000_000),
    200,
    'per socket; a burst: twice that',
  ),
  publishesPerSecond: option(
    'HOLDFAST_GATEWAY_PUBLISHES_PER_SECOND',
    integer(1, 1_000_000),
    100,
    'per socket; a burst: twice that',
  ),
  handshakes: option('HOLDFAST_GATEWAY_HANDSHAKES', integer(1, 10_000), 32, 'handshakes worked on at once'),
  heldHandshakes: option(
    'HOLDFAST_GATEWAY_HELD_HANDSHAKES',
    integer(0, 100_000),
    2000,
    'clients held while Redis cannot answer',
  ),
  slowReaderMs: option(
    'HOLDFAST_GATEWAY_SLOW_READER_MS',
    duration(100, HOUR),
    5 * SECOND,
    'nothing drains that long: closed',
  ),
  origins: option<readonly string[]>(
    'HOLDFAST_GATEWAY_ORIGINS',
    list,
    [],
    'origins that browsers may come from; unset = any',
  ),
  polling: option('HOLDFAST_GATEWAY_POLLING', flag, false, 'HTTP long-polling; needs session affinity at the balancer'),
  rpcGraceMs: option(
    'HOLDFAST_RPC_GRACE_MS',
    duration(0, 10 * MINUTE),
    8 * SECOND,
    'a daemon whose connection died may come back for that long',
  ),
  rpcAbsentGraceMs: option(
    'HOLDFAST_RPC_ABSENT_GRACE_MS',
    duration(0, 10 * MINUTE),
    0,
    'a call waits that long for a first registration of its method',
  ),
  rpcMaxQueued: option('HOLDFAST_RPC_MAX_QUEUED', integer(1, 1_000_000), 1000, 'calls of one method that wait'),
  rpcStockMethods: option<readonly string[]>(
    'HOLDFAST_RPC_STOCK_METHODS',
    list,
    [],
    'methods that stock BullMQ Workers serve: tenant/user/method, each part escaped, * for any run of characters',
  ),
  rpcInFlight: option('HOLDFAST_RPC_IN_FLIGHT', integer(1, 10_000), 64, 'requests that one daemon has in work'),
  rpcMaxPayloadBytes: option(
    'HOLDFAST_RPC_MAX_PAYLOAD_BYTES',
    integer(1024, 16 * MB),
    1_000_000,
    'of the params of a call, and of its result',
  ),
  logBufferBytes: option(
    'HOLDFAST_OPS_LOG_BUFFER_BYTES',
    integer(1024, 2 ** 30),
    MB,
    'log lines kept for a stdout nobody reads',
  ),
} as const;

type Settings = { readonly [K in keyof typeof OPTIONS]: (typeof OPTIONS)[K] extends Option<infer T> ? T : never };

/** The relay's settings, frozen. */
export type RelayConfig = Settings;

export interface LoadedConfig {
  readonly config: RelayConfig;
  /** Names that look like ours and are not. */
  readonly warnings: readonly string[];
}

type Env = Readonly<Record<string, string | undefined>>;

interface Given {
  readonly where: string;
  readonly value: string;
}

/** Of the tools around the relay, or of steps that read their own. */
const FOREIGN = new Set(['HOLDFAST_URL', 'HOLDFAST_API_KEY', 'HOLDFAST_TOKEN']);

/**
 * Flags and environment → settings. The only reader of the process's environment.
 *
 * @param flags what the command line says, under the names of the environment; it goes first
 * @throws {FatalError} naming the option and what is wanted; never the value of a secret
 */
export function loadConfig(env: Env = process.env, flags: Env = {}): LoadedConfig {
  const loaded = read(env, flags);
  checkTogether(loaded.config);
  return loaded;
}

/** For commands beside a running relay: they verify no tokens, so they need no key for it. */
export function loadToolConfig(flags: Env = {}, env: Env = process.env): RelayConfig {
  return read(env, flags).config;
}

function read(env: Env, flags: Env): LoadedConfig {
  const known = new Set<string>(FOREIGN);
  const config: Record<string, unknown> = {};
  for (const [field, spec] of Object.entries(OPTIONS) as [string, Option<unknown>][]) {
    known.add(spec.env);
    if (spec.secret) known.add(`${spec.env}_FILE`);
    const given = textOf(env, flags, spec);
    config[field] = given ? parse(given, spec) : spec.initial;
    // a newcomer's terminal shows what to do next, not JSON
    if (field === 'logLevel' && !given && config.redisUrl === undefined) config[field] = 'warn';
  }
  const warnings = Object.keys(env)
    .filter((key) => key.startsWith('HOLDFAST_') && !known.has(key))
    .map((key) => `unknown setting ${key}`);
  return { config: Object.freeze(config) as unknown as RelayConfig, warnings };
}

/** A setting's text, and where it was given. Empty is as good as unset, but in a file. */
function textOf(env: Env, flags: Env, { env: key, secret: isSecret }: Option<unknown>): Given | undefined {
  const flag = flags[key];
  if (flag !== undefined && flag !== '') return { where: flagOf(key), value: flag };
  const direct = env[key];
  if (direct !== undefined && direct !== '') return { where: key, value: direct };
  const file = isSecret ? env[`${key}_FILE`] : undefined;
  if (!file) return undefined;
  const where = `${key}_FILE`;
  try {
    return { where, value: readFileSync(file, 'utf8').trim() };
  } catch (error) {
    throw new FatalError(`${where}: cannot read the file (${(error as NodeJS.ErrnoException).code})`);
  }
}

/** `HOLDFAST_POD` → `--pod`, `OPS_PORT` → `--ops-port` */
function flagOf(key: string): string {
  return `--${key
    .replace(/^HOLDFAST_/, '')
    .toLowerCase()
    .replaceAll('_', '-')}`;
}

function parse({ where, value }: Given, { schema, secret: isSecret }: Option<unknown>): unknown {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  // a URL that must have no password shows none either
  const got = isSecret ? '' : `, got ${JSON.stringify(value.replace(/\/\/.*@/, '//***@').slice(0, 80))}`;
  throw new FatalError(`${where}: wants ${result.error.issues[0]?.message}${got}`);
}

function checkTogether(config: RelayConfig): void {
  const verifiers = [config.jwtSecret, config.jwtPublicKey, config.jwtJwksUrl].filter((value) => value !== undefined);
  if (verifiers.length > 1)
    throw new FatalError('set one of HOLDFAST_JWT_SECRET, HOLDFAST_JWT_PUBLIC_KEY and HOLDFAST_JWT_JWKS_URL');
  if (config.redisUrl !== undefined && verifiers.length === 0)
    throw new FatalError(
      'no key verifies tokens: set HOLDFAST_JWT_SECRET, HOLDFAST_JWT_PUBLIC_KEY or HOLDFAST_JWT_JWKS_URL',
    );
  const isDatabaseWanted = config.admissionStrict || config.admissionOnError === 'closed';
  if (isDatabaseWanted && config.redisUrl !== undefined && config.databaseUrl === undefined)
    throw new FatalError('HOLDFAST_ADMISSION_STRICT=on and HOLDFAST_ADMISSION_ON_ERROR=closed want a DATABASE_URL');
  if (config.port !== 0 && config.port === config.opsPort && config.host === config.opsHost)
    throw new FatalError(`PORT and OPS_PORT are both ${config.port}`);
}

/** The effective settings as text, secrets masked: for `holdfast check` and the first log line. */
export function printable(config: RelayConfig): Record<string, unknown> {
  return Object.fromEntries(
    (Object.entries(OPTIONS) as [keyof RelayConfig, Option<unknown>][]).map(([field, spec]) => {
      const value = config[field];
      const isSet = value !== undefined && !(Array.isArray(value) && value.length === 0);
      return [spec.env, spec.secret && isSet ? '***' : (value ?? null)];
    }),
  );
}
