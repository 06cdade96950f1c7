import { expect } from 'vitest';
import { sleep } from '../../../src/core/sleep.js';
import type { Pod } from '../../harness/pod.js';
import { eventually } from '../../harness/poll.js';
import { type RedisProcess, startRedis } from '../../harness/redis.js';
import { type Caller, CallLoad, type Told, tally, wordOf } from '../../harness/rpc-calls.js';
import { printFaults } from '../../harness/rpc-ledger.js';
import type { RpcRig, Spread } from '../../harness/rpc-rig.js';
import { untilCallable } from './daemons.js';

/** What a caller hears in an outage comes this soon; the rest is for a busy machine. */
const TOLD_MS = 2000 + 400;

export interface Outage {
  readonly name: string;
  /** Begins the fault, waits, ends it. */
  inflict(rig: RpcRig, forMs: number): Promise<void>;
}

export const STOPPED: Outage = {
  name: 'Redis is stopped and goes on (SIGSTOP)',
  async inflict({ redis }, forMs) {
    redis.pause();
    await sleep(forMs);
    redis.resume();
  },
};

export const RESTARTED: Outage = {
  name: 'Redis is killed and comes back with its data',
  async inflict({ redis }, forMs) {
    await redis.kill();
    await sleep(forMs);
    await redis.start();
  },
};

export const WIPED: Outage = {
  name: 'Redis is killed and comes back without its data',
  async inflict({ redis, admin }, forMs) {
    await admin.flushall();
    await redis.kill();
    await sleep(forMs);
    await redis.start();
  },
};

export const FLUSHED: Outage = {
  name: 'FLUSHALL',
  inflict: async ({ admin }) => void (await admin.flushall()),
};

export const READ_ONLY: Outage = {
  name: 'Redis is read-only for a while',
  async inflict({ admin }, forMs) {
    await admin.config('SET', 'min-replicas-to-write', '1');
    await sleep(forMs);
    await admin.config('SET', 'min-replicas-to-write', '0');
  },
};

export const FULL: Outage = {
  name: 'Redis is full (noeviction)',
  async inflict({ admin }, forMs) {
    await admin.config('SET', 'maxmemory', '1');
    await sleep(forMs);
    await admin.config('SET', 'maxmemory', '0');
  },
};

export const DEMOTED: Outage = {
  name: 'Redis becomes a replica of nobody that answers, and a master again',
  async inflict({ admin }, forMs) {
    await admin.replicaof('127.0.0.1', 1);
    await sleep(forMs);
    await admin.replicaof('NO', 'ONE');
  },
};

/** Another Redis, which had all but the last `behindMs`, takes over. Wants a rig that is `proxied`. */
export const FAILED_OVER: Outage = {
  name: 'a replica that is behind takes over',
  async inflict(rig, behindMs) {
    const replica = await replicaOf(rig);
    await sleep(behindMs);
    await rig.moveTo(replica);
  },
};

async function replicaOf(rig: RpcRig): Promise<RedisProcess> {
  const replica = rig.owns(await startRedis({ aof: 'off', config: { 'repl-diskless-sync-delay': '0' } }));
  const client = rig.admin.duplicate({ port: replica.port });
  await client.replicaof('127.0.0.1', rig.redis.port);
  await eventually(async () => (await rig.admin.info('replication')).includes(`port=${replica.port},state=online`), {
    withinMs: 15_000,
    what: 'the replica',
  });
  await client.replicaof('NO', 'ONE');
  client.disconnect();
  return replica;
}

export interface OutageResult {
  readonly name: string;
  /** Began before the fault, with handlers that span it. */
  readonly running: Readonly<Record<string, number>>;
  /** Of the calls that began during it or soon after it. */
  readonly load: Readonly<Record<string, number>>;
  /** The longest that a caller waited to hear `unavailable`. */
  readonly slowestUnavailableMs: number;
  /** From the fault's end until a daemon of each kind on each pod answers. */
  readonly callableMs: number;
  readonly pending: readonly number[];
  /** Last words of pods whose process ended. */
  readonly ended: readonly string[];
  readonly faults: string;
}

/** Who calls and who is called, through one outage after another. */
export interface Parties {
  readonly spread: readonly Spread[];
  readonly callerOn: (pod: Pod) => Caller;
}

/** A daemon of each kind, and a caller, on each pod. */
export async function gather(rig: RpcRig): Promise<Parties> {
  const raw = await rig.daemonPerPod({ kind: 'raw' });
  const instance = await rig.daemonPerPod({ kind: 'instance' });
  return { spread: [raw, instance], callerOn: await rig.callerPerPod() };
}

/** Calls run through a fault of Redis, others begin in it; then everybody is called again. */
export async function suffer(
  rig: RpcRig,
  { spread, callerOn }: Parties,
  { name, inflict }: Outage,
  forMs: number,
): Promise<OutageResult> {
  const [, near, far] = rig.pods as [Pod, Pod, Pod];
  const before = rig.book.calls.length;
  const handlerMs = forMs + 1000;
  const timeoutMs = forMs + 12_000;
  const running = spread.flatMap(({ userOn }) =>
    rig.pods.map((pod, n) =>
      callerOn(rig.pods[(n + 1) % 3] as Pod).call('work', { user: userOn(pod), ms: handlerMs, timeoutMs }),
    ),
  );
  await eventually(
    async () => {
      const ran = new Set((await rig.book.executions()).map(({ key }) => key));
      return rig.book.calls.slice(before).every(({ key }) => ran.has(key));
    },
    { what: 'the handlers to have begun' },
  );
  const load = new CallLoad(50, (n) =>
    callerOn(rig.pods[n % 3] as Pod).call('work', {
      user: (spread[n % 2] as Spread).userOn(rig.pods[(n >> 1) % 3] as Pod),
      ms: 10,
    }),
  );
  await inflict(rig, forMs);
  const endedAt = Date.now();
  await Promise.all(
    spread.flatMap(({ userOn }) => rig.pods.map((pod) => untilCallable(callerOn(near), userOn(pod), 20_000))),
  );
  const callableMs = Date.now() - endedAt;
  const loaded = await load.stop();
  const ran = await Promise.all(running);
  const after = await Promise.all(
    spread.flatMap(({ userOn }) => rig.pods.map((pod) => callerOn(far).call('work', { user: userOn(pod) }))),
  );
  if (after.some(({ answer }) => !answer?.ok)) throw new Error(`not callable: ${JSON.stringify(tally(after))}`);
  const pending = await Promise.all(rig.pods.map((pod) => rig.metric(pod, 'holdfast_rpc_inflight')));
  return {
    name,
    running: tally(ran),
    load: tally(loaded),
    slowestUnavailableMs: slowestUnavailable([...loaded, ...ran]),
    callableMs,
    pending,
    ended: rig.pods.filter(({ isRunning }) => !isRunning).map((pod) => pod.logs.slice(-5).join('\n')),
    faults: printFaults(await rig.book.check(rig.book.calls.slice(before))),
  };
}

/** What must hold after any of them. */
export function expectSuffered(outage: OutageResult): void {
  // sockets and daemons are alive, so every handler's answer finds its caller
  expect(outage).toMatchObject({ running: { ok: 6 }, faults: '', ended: [] });
  expect(Object.keys(outage.running)).toEqual(['ok']);
  expect(['ok', 'unavailable', 'no_worker', 'worker_lost']).toEqual(expect.arrayContaining(Object.keys(outage.load)));
  expect(outage.load.ok).toBeGreaterThan(0);
  expect(outage.slowestUnavailableMs).toBeLessThan(TOLD_MS);
  expect(outage.callableMs).toBeLessThan(10_000);
  expect(outage.pending).toEqual([0, 0, 0]);
}

function slowestUnavailable(told: readonly Told[]): number {
  return Math.max(0, ...told.filter((each) => wordOf(each) === 'unavailable').map(({ ms }) => ms));
}
