import { sleep } from '../../../src/core/sleep.js';
import { eventually } from '../../harness/poll.js';
import { type Caller, CallLoad, slowest, type Told, tally, wordOf } from '../../harness/rpc-calls.js';
import type { DaemonKind } from '../../harness/rpc-daemon.js';
import { type RpcRig, someone } from '../../harness/rpc-rig.js';

/** Resolves when the handler of a caller's newest call has begun. */
export async function begun(rig: RpcRig, { newestKey }: Caller): Promise<void> {
  await eventually(async () => (await rig.book.runsOf(newestKey)) > 0, { what: `${newestKey} to have begun` });
}

export interface Restarted {
  readonly outcome: string;
  readonly mayHaveRun: boolean | undefined;
  readonly runs: number;
  /** From its new registration to the answer; negative: before. */
  readonly afterReturnMs: number;
}

/** A daemon's process is killed in the middle of a call, and another one is started with the same settings. */
export async function daemonRestarts(rig: RpcRig, kind: DaemonKind, idempotent = false): Promise<Restarted> {
  const { daemon, user } = await rig.daemon({ kind });
  const caller = await rig.caller();
  const isRunAgain = idempotent || kind === 'durable';
  const calling = caller.call('work', {
    user,
    ms: 1500,
    maxRuns: isRunAgain ? 2 : 1,
    ...(idempotent && { idempotent }),
  });
  await begun(rig, caller);
  await daemon.kill();
  daemon.start();
  const returnedAt = await daemon.registered();
  const told = await calling;
  const answered = { outcome: wordOf(told), mayHaveRun: told.answer?.mayHaveRun };
  const afterReturnMs = told.call.startedAt + told.ms - returnedAt;
  // it is callable, and what was lost doesn't run late
  await caller.call('work', { user });
  return { ...answered, runs: await rig.book.runsOf(told.call.key), afterReturnMs };
}

/** The daemon's network is cut again and again while it is called. */
export async function reconnectStorm(
  rig: RpcRig,
  { reconnects, callers: count, everyMs }: { reconnects: number; callers: number; everyMs: number },
) {
  const { daemon, user } = await rig.daemon({ kind: 'instance' });
  const callers = await Promise.all(Array.from({ length: count }, () => rig.caller()));
  const load = new CallLoad(everyMs / count, (n) => (callers[n % count] as Caller).call('work', { user, ms: 20 }));
  const delays: number[] = [];
  for (let n = 0; n < reconnects; n++) {
    await sleep(700);
    const cutAt = Date.now();
    daemon.tell('drop');
    delays.push((await daemon.registered({ since: cutAt })) - cutAt);
  }
  await sleep(500);
  const told = await load.stop();
  return { calls: told.length, outcomes: tally(told), slowestMs: slowest(told), delays };
}

/** SIGSTOP of a daemon's process under calls; how soon after SIGCONT it answers again. */
export async function daemonPauses(rig: RpcRig, pauseMs: number) {
  const { daemon, user } = await rig.daemon({ kind: 'instance' });
  const caller = await rig.caller();
  daemon.pause();
  const load = new CallLoad(500, () => caller.call('work', { user, timeoutMs: 2000, mayRunLate: true }));
  await sleep(pauseMs);
  const told = await load.stop();
  daemon.resume();
  const callableMs = await untilCallable(caller, user);
  return { outcomes: tally(told), callableMs };
}

/** Calls one after another until one succeeds; how long that took, in ms. */
export async function untilCallable(caller: Caller, user: string, withinMs = 15_000): Promise<number> {
  const startedAt = Date.now();
  const tries: Told[] = [];
  while (Date.now() - startedAt < withinMs) {
    const told = await caller.call('work', { user, timeoutMs: 2000 });
    if (told.answer?.ok) return Date.now() - startedAt;
    tries.push(told);
    await sleep(20);
  }
  throw new Error(`${user} was not callable within ${withinMs} ms: ${JSON.stringify(tally(tries))}`);
}

/** 1,000 daemons, one pod killed, everybody called. */
export async function massStorm(
  rig: RpcRig,
  { daemons: count, processes, methods: width, calls, perSecond }: MassOptions,
) {
  const methods = Array.from({ length: width }, (_, n) => `method-${n}`);
  const users = Array.from({ length: count }, () => someone('machine'));
  const share = Math.ceil(count / processes);
  const parts = await Promise.all(
    Array.from({ length: processes }, (_, n) =>
      rig.daemon({ kind: 'instance', methods, users: users.slice(n * share, (n + 1) * share) }),
    ),
  );
  const callers = await Promise.all(Array.from({ length: 10 }, () => rig.caller()));
  const any = <T>(list: readonly T[]): T => list[Math.floor(Math.random() * list.length)] as T;
  const load = new CallLoad(1000 / perSecond, (n) =>
    (callers[n % callers.length] as Caller).call(any(methods), { user: any(users), timeoutMs: 20_000 }),
  );
  const untilMade = (share: number): Promise<void> =>
    eventually(() => load.made >= calls * share, { withinMs: 600_000, what: 'the calls to be made' });
  await untilMade(0.3);
  const [pod] = rig.pods;
  const killedAt = Date.now();
  await pod?.sigkill();
  await untilMade(1);
  const told = await load.stop();
  let movedDaemons = 0;
  for (const { daemon } of parts)
    for (const { daemon: only } of daemon.notesOf('disconnect', killedAt)) {
      await daemon.registered({ since: killedAt, only, withinMs: 60_000 });
      movedDaemons++;
    }
  if (pod) await rig.startAgain(pod);
  return { calls: told.length, outcomes: tally(told), slowestMs: slowest(told), movedDaemons };
}

export interface MassOptions {
  readonly daemons: number;
  readonly processes: number;
  readonly methods: number;
  readonly calls: number;
  readonly perSecond: number;
}
