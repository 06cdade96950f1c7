import { expect } from 'vitest';
import { sleep } from '../../../src/core/sleep.js';
import type { Exit } from '../../harness/child.js';
import type { Pod } from '../../harness/pod.js';
import { eventually } from '../../harness/poll.js';
import { type Caller, CallLoad, slowest, type Told, tally, wordOf } from '../../harness/rpc-calls.js';
import { printFaults } from '../../harness/rpc-ledger.js';
import { type RpcRig, type Spread, someone } from '../../harness/rpc-rig.js';
import { begun } from './daemons.js';

/** `HOLDFAST_DRAIN_MS` of the rig. */
const DRAIN_MS = 2000;

export interface PodGoesOptions {
  readonly handlerMs: number;
  /** From the calls to the signal. */
  readonly afterMs: number;
  readonly signal: 'SIGKILL' | 'SIGTERM';
}

interface One {
  readonly outcome: string;
  readonly ms: number;
  readonly runs: number;
  readonly mayHaveRun?: boolean | undefined;
  /** From its daemon's new registration to the answer. */
  readonly afterReturnMs?: number;
}

export interface PodGone {
  /** A daemon that deduplicates within its process. */
  readonly instance: One;
  /** One that says it remembers for good, and that trusts in its recovery: it registers at its first connect only. */
  readonly durable: One;
  readonly raw: One;
  /** A call that is idempotent, to a raw daemon. */
  readonly idempotent: One;
  /** Of a caller whose own pod goes. */
  readonly ownPod: One;
  /** Of the daemon that did not register again, when all is over. */
  readonly later: string;
  /** Calls between the two other pods, over all the time. */
  readonly bystanders: {
    readonly calls: number;
    readonly outcomes: Readonly<Record<string, number>>;
    readonly slowestMs: number;
  };
  readonly exit: Exit;
  readonly exitMs: number;
  readonly faults: string;
}

/** The daemons and callers of such a run, which serve for many: one of each kind on each pod. */
class Parties {
  private constructor(
    readonly rig: RpcRig,
    readonly instance: Spread,
    readonly durable: Spread,
    readonly raw: Spread,
    readonly callerOn: (pod: Pod) => Caller,
  ) {}

  static async gather(rig: RpcRig, reconnectionDelayMs = 400): Promise<Parties> {
    const instance = await rig.daemonPerPod({ kind: 'instance', reconnectionDelayMs });
    const durable = await rig.daemonPerPod({ kind: 'durable', registers: 'once', reconnectionDelayMs });
    const raw = await rig.daemonPerPod({ kind: 'raw', reconnectionDelayMs });
    return new Parties(rig, instance, durable, raw, await rig.callerPerPod());
  }

  async leave(): Promise<void> {
    for (const { daemon } of [this.instance, this.durable, this.raw]) await daemon.kill();
    for (const pod of this.rig.pods) await this.callerOn(pod).client.stop();
  }
}

/** Calls of every kind are under way when a pod goes; who had its socket there comes back elsewhere. The pod is started again. */
export async function podGoes(rig: RpcRig, index: number, options: PodGoesOptions): Promise<PodGone> {
  const { handlerMs: ms, afterMs, signal } = options;
  const parties = await Parties.gather(rig);
  const [pod, near, far] = [0, 1, 2].map((offset) => rig.pods[(index + offset) % 3]) as [Pod, Pod, Pod];
  const { instance, durable, raw, callerOn } = parties;
  const from = callerOn(near);
  const calls = {
    instance: from.call('work', { user: instance.userOn(pod), ms }),
    durable: from.call('work', { user: durable.userOn(pod), ms }),
    raw: from.call('work', { user: raw.userOn(pod), ms }),
    idempotent: from.call('work', { user: raw.userOn(pod), ms, idempotent: true, maxRuns: 2 }),
    ownPod: callerOn(pod).call('work', { user: raw.userOn(far), ms }),
  };
  const between = new CallLoad(50, (n) =>
    n % 2 === 0
      ? callerOn(near).call('work', { user: raw.userOn(far) })
      : callerOn(far).call('work', { user: instance.userOn(near) }),
  );
  await sleep(afterMs);
  const goneAt = Date.now();
  const leaving = (signal === 'SIGKILL' ? pod.sigkill() : pod.sigterm()).then((exit) => ({
    exit,
    exitMs: Date.now() - goneAt,
  }));
  const returnOf = ({ daemon, indexOf }: Spread): Promise<number> =>
    daemon.registered({ since: goneAt, only: indexOf(pod), withinMs: ms + 5000 });
  const one = async (call: Promise<Told>, spread?: Spread): Promise<One> => {
    const told = await call;
    const returnedAt = spread && (await returnOf(spread));
    return {
      outcome: wordOf(told),
      ms: told.ms,
      runs: await rig.book.runsOf(told.call.key),
      ...(told.answer?.mayHaveRun !== undefined && { mayHaveRun: told.answer.mayHaveRun }),
      ...(returnedAt && { afterReturnMs: told.call.startedAt + told.ms - returnedAt }),
    };
  };
  const gone = {
    instance: await one(calls.instance, instance),
    durable: await one(calls.durable),
    raw: await one(calls.raw, raw),
    idempotent: await one(calls.idempotent, raw),
    ownPod: await one(calls.ownPod),
  };
  const { exit, exitMs } = await leaving;
  const told = await between.stop();
  const later = await from.call('work', { user: durable.userOn(pod) });
  const bystanders = { calls: told.length, outcomes: tally(told), slowestMs: slowest(told) };
  await rig.startAgain(pod);
  await parties.leave();
  return { ...gone, later: wordOf(later), bystanders, exit, exitMs, faults: printFaults(await rig.book.check()) };
}

/** What must hold of each such run. Times are loose by what a busy machine needs. */
export function expectSurvived(gone: PodGone, { handlerMs, afterMs, signal }: PodGoesOptions): void {
  const once = { outcome: 'ok', runs: 1 };
  expect(gone).toMatchObject({
    instance: once,
    durable: once,
    raw: { outcome: 'worker_lost', mayHaveRun: true, runs: 1 },
    idempotent: { outcome: 'ok' },
    ownPod: once,
    later: 'ok',
    faults: '',
    exit: signal === 'SIGTERM' ? { code: 0 } : { signal },
  });
  for (const { ms } of [gone.instance, gone.durable, gone.ownPod]) {
    expect(ms).toBeGreaterThan(handlerMs - 50);
    expect(ms).toBeLessThan(handlerMs + 1000);
  }
  expect(gone.raw.afterReturnMs).toBeLessThan(1000);
  // one more run, from its return on
  expect(gone.idempotent.ms).toBeLessThan(afterMs + DRAIN_MS + 2000 + handlerMs);
  expect(gone.bystanders.outcomes).toEqual({ ok: gone.bystanders.calls });
  expect(gone.bystanders.calls).toBeGreaterThanOrEqual(handlerMs / 100);
  expect(gone.bystanders.slowestMs).toBeLessThan(1000);
  expect(gone.exitMs).toBeLessThan(DRAIN_MS + 3000);
}

/** A call goes on while its caller's pod is gone; the caller asks again after the handler has finished. */
export async function callerReturnsLate(rig: RpcRig): Promise<readonly One[]> {
  const callerOn = await rig.callerPerPod();
  const daemons = await rig.daemonPerPod({ kind: 'raw' });
  const [pod, other] = rig.pods as [Pod, Pod];
  const caller = callerOn(pod);
  const answers: One[] = [];
  caller.client.socket.io.reconnection(false);
  const key = someone('attached');
  const calling = caller.call('work', { user: daemons.userOn(other), ms: 600 });
  await begun(rig, caller);
  const attached = caller.call('work', { user: daemons.userOn(other), ms: 600, id: key });
  await begun(rig, caller);
  await pod.sigkill();
  const inWork = `hf:rpc:{default/${daemons.userOn(other)}}:work:active`;
  await eventually(async () => (await rig.admin.llen(inWork)) === 0, { what: 'both to have finished' });
  const elsewhere = await rig.caller(caller.user);
  const asked = await elsewhere.client.request('rpc-attach', { id: key, user: daemons.userOn(other) });
  answers.push({ outcome: asked.ok ? 'ok' : (asked.code ?? 'none'), ms: 0, runs: 1 });
  caller.client.socket.io.reconnection(true);
  caller.client.socket.connect();
  for (const told of [await calling, await attached])
    answers.push({ outcome: wordOf(told), ms: told.ms, runs: await rig.book.runsOf(told.call.key) });
  await rig.startAgain(pod);
  return answers;
}
