import type { Namespace, Server } from 'socket.io';
import type { Adapter } from 'socket.io-adapter';
import { placeOf } from '../redis/client-place.js';
import { HoldfastAdapter } from './adapter.js';
import { AdapterHost } from './host.js';
import { type AdapterOptions, settingsOf } from './options.js';

export type { AdapterOptions, BridgeOptions } from './options.js';

/**
 * An adapter for a Socket.IO server: `new Server({ adapter: createAdapter(new Redis(url)) })`, in place of
 * `@socket.io/redis-streams-adapter`. Every broadcast that Redis accepted reaches every subscriber on every server, in one
 * order; with `connectionStateRecovery` also those that come back, after a SIGKILL too.
 *
 * @param redis an ioredis client, or one of node-redis: it says where Redis is, and its own connection is not used
 * @throws {TypeError} in one line: a Cluster, no client at all, or an option with a wrong value
 */
export function createAdapter(redis: unknown, options: AdapterOptions = {}): (nsp: Namespace) => Adapter {
  const settings = settingsOf(options);
  const place = placeOf(redis, 'createAdapter');
  const hosts = new WeakMap<Server, AdapterHost>();
  // Socket.IO calls it with `new`
  return function adapterOf(nsp: Namespace): Adapter {
    const { server } = nsp;
    let host = hosts.get(server);
    if (!host || host.isStopped) {
      const recovery = (
        server as unknown as { opts: { connectionStateRecovery?: { maxDisconnectionDuration: number } } }
      ).opts.connectionStateRecovery;
      host = new AdapterHost({ place, settings, recoveryWindowMs: recovery?.maxDisconnectionDuration ?? 0 });
      hosts.set(server, host);
    }
    return new HoldfastAdapter(nsp, host, settings);
  };
}
