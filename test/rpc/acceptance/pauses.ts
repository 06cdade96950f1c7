import { sleep } from '../../../src/core/sleep.js';
import type { Pod } from '../../harness/pod.js';
import { eventually } from '../../harness/poll.js';
import { CallLoad, slowest, tally } from '../../harness/rpc-calls.js';
import type { RpcRig } from '../../harness/rpc-rig.js';
import { untilCallable } from './daemons.js';

/** Of a pod's lease, in ms. */
export const LEASE_MS = 3000;

/** A pod is paused past its lease; meanwhile one of its two daemons' methods gets a newer owner on another pod. */
export async function podPauses(rig: RpcRig, pauseMs: number) {
  const [pod, near, far] = rig.pods as [Pod, Pod, Pod];
  const kept = await rig.daemonPerPod({ kind: 'instance' });
  const contested = await rig.daemonPerPod({ kind: 'instance' });
  const callerOn = await rig.callerPerPod();
  const between = new CallLoad(100, () => callerOn(near).call('work', { user: kept.userOn(far) }));
  pod.pause();
  const newer = await rig.daemon({ kind: 'instance', users: [contested.userOn(pod)], url: near.url });
  await sleep(pauseMs);
  const told = await between.stop();
  pod.resume();
  const user = kept.userOn(pod);
  const callableMs = await Promise.all([near, far, pod].map((each) => untilCallable(callerOn(each), user)));
  const index = contested.indexOf(pod);
  const replaced = () => contested.daemon.notesOf('unregistered').filter(({ daemon }) => daemon === index);
  await eventually(() => replaced().length > 0, { what: 'the older daemon to be told', withinMs: 10_000 });
  await sleep(LEASE_MS); // whoever would steal it back has had its time
  const owners = await Promise.all(
    [near, far, pod].map(async (each) => {
      const { answer } = await callerOn(each).call('work', { user: newer.user });
      return (answer?.result as { pid?: number } | undefined)?.pid === newer.daemon.pid ? 'newer' : 'older';
    }),
  );
  const reasserted = await rig.metric(pod, 'holdfast_rpc_reasserted_total');
  const bystanders = { calls: told.length, outcomes: tally(told), slowestMs: slowest(told) };
  return { callableMs, owners, replaced: replaced().map(({ reason }) => reason), bystanders, reasserted };
}

/** Somebody deletes a user's registrations in Redis; how soon its daemons, who do nothing, can be called again. */
export async function registrationsVanish(rig: RpcRig) {
  const daemons = await rig.daemonPerPod({ kind: 'raw' });
  const callerOn = await rig.callerPerPod();
  const total = async (): Promise<number> => {
    const counts = await Promise.all(rig.pods.map((pod) => rig.metric(pod, 'holdfast_rpc_reasserted_total')));
    return counts.reduce((sum, count) => sum + count, 0);
  };
  const before = await total();
  const deleted = await Promise.all(
    rig.pods.map((pod) => rig.admin.del(`hf:rpc:{default/${daemons.userOn(pod)}}:@reg`)),
  );
  const callableMs = await Promise.all(
    rig.pods.map((pod) => untilCallable(callerOn(pod), daemons.userOn(pod), 15_000)),
  );
  return { deleted, callableMs, reasserted: (await total()) - before };
}

/** No application traffic at all; then every daemon is called. */
export async function staysSilent(rig: RpcRig, silentMs: number) {
  const daemons = await rig.daemonPerPod({ kind: 'raw' });
  const callerOn = await rig.callerPerPod();
  await sleep(silentMs);
  const told = await Promise.all(
    rig.pods.flatMap((from) => rig.pods.map((to) => callerOn(from).call('work', { user: daemons.userOn(to) }))),
  );
  return { outcomes: tally(told), reconnects: daemons.daemon.notesOf('disconnect').length };
}
