import { connect } from '../harness/client.js';
import { startHaproxy } from '../harness/haproxy.js';
import { startPod } from '../harness/pod.js';
import { startRedis } from '../harness/redis.js';
import { ALL_CAPS, token } from '../harness/token.js';

export interface IdleOptions {
  readonly tunnelTimeout: string;
  readonly idleMs: number;
  readonly env?: Readonly<Record<string, string>>;
}

/** Disconnects that an idle client saw behind a balancer that cuts silent tunnels. */
export async function runIdle({ tunnelTimeout, idleMs, env }: IdleOptions): Promise<number> {
  await using redis = await startRedis();
  await using pod = await startPod({ redisUrl: redis.url, name: 'a', env });
  const backends = [{ host: '127.0.0.1', port: pod.port, opsPort: pod.opsPort }];
  await using haproxy = await startHaproxy({ backends, tunnelTimeout });
  await using client = await connect(haproxy.url, { token: await token({ sub: 'u', caps: ALL_CAPS }) });
  await new Promise((resolve) => setTimeout(resolve, idleMs));
  return client.disconnects.length;
}
