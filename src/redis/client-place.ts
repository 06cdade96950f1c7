import type { RedisOptions } from 'ioredis';
import type { RedisAddress } from './connect.js';

/** What of somebody's ioredis client says where Redis is, and not how to behave. */
const PLACE = [
  'host',
  'port',
  'path',
  'family',
  'username',
  'password',
  'db',
  'tls',
  'sentinels',
  'name',
  'role',
  'sentinelUsername',
  'sentinelPassword',
  'sentinelTLS',
  'enableTLSForSentinelMode',
  'preferredSlaves',
  'natMap',
] as const;

export interface ClientPlace {
  readonly address: RedisAddress;
  /** Before every key, as the client has it. */
  readonly keyPrefix: string;
}

/**
 * Where a client's Redis is. Its own connection is not used: one that queues or repeats commands by itself would break what is
 * promised of them, and a blocking read needs a connection of its own anyway.
 *
 * @param forWhom the function that was given it, for the error's text
 * @throws {TypeError} in one line: a Cluster, or no client at all
 */
export function placeOf(client: unknown, forWhom: string): ClientPlace {
  if (typeof client !== 'object' || client === null)
    throw new TypeError(`${forWhom}: wants an ioredis client, such as new Redis(url)`);
  const { isCluster, options, rootNodes, masters, slots } = client as Record<string, unknown>;
  if (isCluster === true || rootNodes || masters || slots)
    throw new TypeError(`${forWhom}: Redis Cluster is not supported yet; give it a client of a single Redis`);
  if ('status' in client && typeof options === 'object' && options !== null) return ioredisPlace(options);
  // node-redis has no options where none were given; its pool and its Sentinel client keep theirs to themselves
  if ('isOpen' in client && 'options' in client) return nodeRedisPlace((options ?? {}) as NodeRedisOptions, forWhom);
  throw new TypeError(`${forWhom}: this client does not say where its Redis is; give it new Redis(url) of ioredis`);
}

function ioredisPlace(options: RedisOptions): ClientPlace {
  const given = options as Readonly<Record<string, unknown>>;
  const address: Record<string, unknown> = {};
  for (const name of PLACE) if (given[name] !== undefined && given[name] !== null) address[name] = given[name];
  return { address, keyPrefix: options.keyPrefix ?? '' };
}

/** As `createClient` of node-redis 4 and 5 keeps them. */
interface NodeRedisOptions {
  readonly url?: string;
  readonly username?: string;
  readonly password?: string;
  readonly database?: number;
  readonly credentialsProvider?: unknown;
  readonly socket?: {
    readonly host?: string;
    readonly port?: number;
    readonly path?: string;
    readonly family?: number;
    readonly tls?: unknown;
  } & Readonly<Record<string, unknown>>;
}

function nodeRedisPlace({ url, socket, credentialsProvider, ...rest }: NodeRedisOptions, forWhom: string): ClientPlace {
  // node-redis makes one of a password too
  if (credentialsProvider && !rest.username && !rest.password)
    throw new TypeError(`${forWhom}: a credentials provider cannot be shared; give it new Redis(options) of ioredis`);
  const parsed = url === undefined ? undefined : new URL(url);
  const isTls = socket?.tls === true || parsed?.protocol === 'rediss:';
  const { host, port, path, family, tls: _tls, reconnectStrategy: _strategy, ...tlsOptions } = socket ?? {};
  const username = rest.username ?? decoded(parsed?.username);
  const password = rest.password ?? decoded(parsed?.password);
  const db = rest.database ?? (Number(parsed?.pathname.slice(1)) || 0);
  const address: RedisOptions = path
    ? { path }
    : { host: host ?? (parsed?.hostname || 'localhost'), port: port ?? (Number(parsed?.port) || 6379) };
  return {
    address: {
      ...address,
      ...(family !== undefined && { family }),
      ...(username && { username }),
      ...(password && { password }),
      db,
      ...(isTls && { tls: tlsOptions }),
    },
    keyPrefix: '',
  };
}

function decoded(part: string | undefined): string | undefined {
  return part ? decodeURIComponent(part) : undefined;
}
