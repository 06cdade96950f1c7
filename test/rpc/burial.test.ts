import { expect, it } from 'vitest';
import { connect } from '../harness/client.js';
import { startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { token } from '../harness/token.js';

const GRACE_MS = 5000;

it('a call in work on a pod that died with its daemon is worker_lost at the end of the grace, though the pod was buried before', async () => {
  await using redis = await startRedis({ aof: 'off' });
  const env = { HOLDFAST_RPC_GRACE_MS: `${GRACE_MS}` };
  const [a, b] = await Promise.all(['pod-a', 'pod-b'].map((name) => startPod({ redisUrl: redis.url, name, env })));
  await using first = a!;
  await using second = b!;
  const ann = await token({ sub: 'ann' });
  await using daemon = await connect(second.url, { token: ann });
  await using caller = await connect(first.url, { token: ann });
  let requests = 0;
  daemon.socket.on('rpc-request', () => requests++);
  await daemon.socket.emitWithAck('rpc-register', { method: 'hang' });
  const call = caller.socket.emitWithAck('rpc-call', { method: 'hang', timeoutMs: 30_000 });
  await eventually(() => requests === 1);
  await second.sigkill();
  const diedAt = performance.now();
  expect(await call).toMatchObject({ ok: false, code: 'worker_lost', mayHaveRun: true });
  expect(performance.now() - diedAt).toBeLessThan(GRACE_MS + 2000);
  expect((await first.metrics()).get('holdfast_processes_reaped_total')).toBe(1);
  expect(await caller.socket.emitWithAck('rpc-call', { method: 'hang' })).toMatchObject({ code: 'no_worker' });
});
