import { expect } from 'vitest';
import { sleep } from '../../../src/core/sleep.js';
import type { Pod } from '../../harness/pod.js';
import { eventually } from '../../harness/poll.js';
import { CallLoad, slowest, type Told, tally, wordOf } from '../../harness/rpc-calls.js';
import { printFaults } from '../../harness/rpc-ledger.js';
import type { RpcRig } from '../../harness/rpc-rig.js';
import { untilCallable } from './daemons.js';

/** What a caller on a pod without Redis hears comes this soon; the rest is for a busy machine. */
const TOLD_MS = 2000 + 400;

interface Loaded {
  readonly calls: number;
  readonly outcomes: Readonly<Record<string, number>>;
  readonly slowestMs: number;
  readonly slowestUnavailableMs: number;
}

export interface LinkCut {
  readonly cutMs: number;
  /** From the pod that is cut off. */
  readonly fromCut: Loaded;
  /** To daemons on it. */
  readonly toCut: Loaded;
  readonly between: Loaded;
  /** From the link's return until daemons on that pod answer, and until callers there are answered. */
  readonly callableMs: number;
  readonly callingMs: number;
  readonly faults: string;
}

/** One pod's connections to Redis pass nothing for a while, in a steady load of calls from it, to it and between the others. */
export async function linkCut(rig: RpcRig, index: number, cutMs: number, everyMs = 100): Promise<LinkCut> {
  const daemons = await rig.daemonPerPod({ kind: 'instance' });
  const callerOn = await rig.callerPerPod();
  const [cut, near, far] = [0, 1, 2].map((offset) => rig.pods[(index + offset) % 3]) as [Pod, Pod, Pod];
  const before = rig.book.calls.length;
  // where the link returns just as callers are told of their end, whether a call still began is the machine's to decide:
  // a short cut can be over before any of them
  const timeoutMs = cutMs < 4000 ? 2 * cutMs + 4000 : 4000;
  const load = (from: Pod, to: Pod): CallLoad =>
    new CallLoad(everyMs, () => callerOn(from).call('work', { user: daemons.userOn(to), ms: 10, timeoutMs }));
  const loads = { fromCut: load(cut, far), toCut: load(near, cut), between: load(near, far) };
  const isUnderWay = () => Object.values(loads).every(({ made }) => made >= 5);
  await eventually(isUnderWay, { what: 'all loads to be under way' });
  const proxy = rig.proxies[rig.pods.indexOf(cut)];
  proxy?.blackhole(true);
  await sleep(cutMs);
  proxy?.blackhole(false);
  const [callableMs, callingMs] = await Promise.all([
    untilCallable(callerOn(near), daemons.userOn(cut), 20_000),
    untilCallable(callerOn(cut), daemons.userOn(far), 20_000),
  ]);
  const told = {
    fromCut: loadedOf(await loads.fromCut.stop()),
    toCut: loadedOf(await loads.toCut.stop()),
    between: loadedOf(await loads.between.stop()),
  };
  await daemons.daemon.kill();
  return {
    cutMs,
    ...told,
    callableMs,
    callingMs,
    faults: printFaults(await rig.book.check(rig.book.calls.slice(before))),
  };
}

/** What must hold of each. */
export function expectLinked(cut: LinkCut): void {
  expect(cut.faults).toBe('');
  expect(cut.between.outcomes).toEqual({ ok: cut.between.calls });
  expect(cut.between.slowestMs).toBeLessThan(1500);
  expect(cut.fromCut.slowestUnavailableMs).toBeLessThan(TOLD_MS);
  expect(cut.fromCut.outcomes.ok).toBeGreaterThan(0);
  // the control: that the link was cut shows; one of 2 s ends with the first calls that would be told so
  expect(cut.fromCut.slowestMs).toBeGreaterThan(1500);
  if (cut.cutMs > 2500) expect(cut.fromCut.outcomes.unavailable).toBeGreaterThan(0);
  expect(cut.callableMs).toBeLessThan(10_000);
  expect(cut.callingMs).toBeLessThan(10_000);
}

function loadedOf(told: readonly Told[]): Loaded {
  const unavailable = told.filter((each) => wordOf(each) === 'unavailable');
  return {
    calls: told.length,
    outcomes: tally(told),
    slowestMs: slowest(told),
    slowestUnavailableMs: slowest(unavailable),
  };
}
