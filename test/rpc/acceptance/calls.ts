import { io } from 'socket.io-client';
import { eventually } from '../../harness/poll.js';
import { type Told, tally } from '../../harness/rpc-calls.js';
import { type RpcRig, someone } from '../../harness/rpc-rig.js';
import { ALL_CAPS, token } from '../../harness/token.js';

function percentile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}

/**
 * Calls of methods that nobody registered, one after another, and what they leave in Redis; with each, as a control, one of
 * a method that is served.
 */
export async function callAbsent(rig: RpcRig, count: number) {
  const caller = await rig.caller();
  const served = await rig.daemon({ kind: 'raw' });
  const user = someone('nobody');
  const times: number[] = [];
  const servedTimes: number[] = [];
  const told: Told[] = [];
  for (let n = 0; n < count; n++) {
    const startedAt = performance.now();
    told.push(await caller.call(`method-${n % 10}`, { user }));
    const servedFrom = performance.now();
    times.push(servedFrom - startedAt);
    await caller.call('work', { user: served.user });
    servedTimes.push(performance.now() - servedFrom);
  }
  let keysLeft: string[] = [];
  await eventually(
    async () => {
      keysLeft = await rig.keys(`*${user}*`);
      return keysLeft.length === 0;
    },
    { withinMs: 10_000 },
  ).catch(() => {});
  return {
    outcomes: tally(told),
    p50Ms: percentile(times, 0.5),
    p99Ms: percentile(times, 0.99),
    servedP99Ms: percentile(servedTimes, 0.99),
    keysLeft,
  };
}

/** Each round: a daemon connects and registers in that very tick; when told so, one call from each pod. */
export async function registerInTheSameTick(rig: RpcRig, rounds: number) {
  const callerOn = await rig.callerPerPod();
  const outcomes: Record<string, number> = {};
  for (let round = 0; round < rounds; round++) {
    const sub = someone('machine');
    const socket = io(rig.haproxy.url, {
      auth: { token: await token({ sub, caps: ALL_CAPS }) },
      transports: ['websocket'],
      forceNew: true,
    });
    socket.on('rpc-request', ({ params }, ack) => ack(params));
    const calling = new Promise<readonly { ok: boolean; code?: string }[]>((resolve) => {
      socket.once('rpc-registered', () =>
        resolve(
          Promise.all(
            rig.pods.map((pod) => callerOn(pod).client.request('rpc-call', { method: 'work', user: sub, params: 1 })),
          ),
        ),
      );
    });
    socket.on('connect', () => socket.emit('rpc-register', { method: 'work' }));
    for (const { ok, code } of await calling) {
      const word = ok ? 'ok' : (code ?? 'none');
      outcomes[word] = (outcomes[word] ?? 0) + 1;
    }
    socket.disconnect();
  }
  return outcomes;
}
