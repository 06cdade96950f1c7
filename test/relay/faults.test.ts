import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { connect } from '../harness/client.js';
import { type Pod, startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { token } from '../harness/token.js';

let redis: RedisProcess;
let jwt: string;
beforeAll(async () => {
  redis = await startRedis();
  jwt = await token({ sub: 'ann' });
});
afterAll(() => redis?.stop());

let prefixes = 0;
const fresh = (): Record<string, string> => ({ HOLDFAST_REDIS_PREFIX: `t${prefixes++}:` });

/** A pod with a fault in it, which SIGUSR2 sets off. */
function faulty(fault: string): Promise<Pod> {
  const NODE_OPTIONS = `--import=data:text/javascript,${encodeURIComponent(`process.on('SIGUSR2', () => { ${fault} })`)}`;
  return startPod({ redisUrl: redis.url, name: 'pod-a', env: { ...fresh(), NODE_OPTIONS } });
}

const linesOf = (pod: Pod, event: string): string[] => pod.logs.filter((line) => line.includes(`"event":"${event}"`));

describe('a fault', () => {
  it('that nothing caught ends the process, with its stack in the log and its clients told by a closed transport', async () => {
    await using pod = await faulty(`throw new Error('boom')`);
    await using client = await connect(pod.url, { token: jwt });
    process.kill(pod.pid, 'SIGUSR2');
    expect(await pod.exit).toEqual({ code: 1, signal: null });
    expect(linesOf(pod, 'uncaught_exception')).toEqual([expect.stringMatching(/"level":60.*boom.*"stack"/)]);
    await eventually(() => client.disconnects.length === 1);
    expect(client.socket.active).toBe(true);
  });

  it('in a promise that was dropped is logged, and the relay serves on', async () => {
    await using pod = await faulty(`void Promise.reject(new Error('boom'))`);
    await using client = await connect(pod.url, { token: jwt });
    process.kill(pod.pid, 'SIGUSR2');
    await eventually(() =>
      expect(linesOf(pod, 'unhandled_rejection')).toEqual([expect.stringMatching(/"level":50.*boom/)]),
    );
    expect((await client.subscribe('user:ann')).ok).toBe(true);
    expect(client.disconnects).toEqual([]);
  });
});
