import { sleep } from '../../../src/core/sleep.js';
import { type Caller, CallLoad, slowest, tally, wordOf } from '../../harness/rpc-calls.js';
import { printFaults } from '../../harness/rpc-ledger.js';
import { type RpcRig, type Served, someone } from '../../harness/rpc-rig.js';

export interface ChaosOptions {
  readonly runMs: number;
  readonly daemons: number;
  readonly callers: number;
  readonly callsPerSecond: number;
  /** Between two faults. */
  readonly calmMs: number;
}

export interface ChaosResult {
  readonly calls: number;
  readonly outcomes: Readonly<Record<string, number>>;
  readonly executions: number;
  /** Keys that were run at least once. */
  readonly ran: number;
  readonly slowestMs: number;
  /** Fault → how often. */
  readonly inflicted: Readonly<Record<string, number>>;
  /** What was inflicted, and the calls that failed, in order: `seconds: what`. */
  readonly story: readonly string[];
  readonly pending: readonly number[];
  readonly faults: string;
  readonly complaints: readonly string[];
}

/** What the run was made of, so that a failure can be run again in the same order. */
function randomOf(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 1_664_525 + 1_013_904_223) % 2 ** 32;
    return state / 2 ** 32;
  };
}

/** Pods, daemons and links fail at random, one after another, while everybody is called. Wants a rig that is `proxied`. */
export async function chaos(rig: RpcRig, options: ChaosOptions, seed = 1): Promise<ChaosResult> {
  const { runMs, daemons: count, callers: width, callsPerSecond, calmMs } = options;
  const random = randomOf(seed);
  const any = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)] as T;
  const users = Array.from({ length: count }, () => someone('machine'));
  const served: readonly Served[] = await Promise.all(
    [0, 1].map((part) => rig.daemon({ kind: 'instance', users: users.filter((_, n) => n % 2 === part) })),
  );
  const callers = await Promise.all(Array.from({ length: width }, () => rig.caller()));
  const load = new CallLoad(1000 / callsPerSecond, (n) =>
    (callers[n % width] as Caller).call('work', {
      user: any(users),
      ms: Math.floor(random() * 1500),
      timeoutMs: 30_000,
    }),
  );
  const complaints: string[] = [];
  const events: { at: number; what: string }[] = [];
  const note = (what: string, at = Date.now()): void => void events.push({ at, what });
  const restarted = async (pod: (typeof rig.pods)[number], signal: 'SIGTERM' | 'SIGKILL'): Promise<void> => {
    note(`it is ${pod.name}`);
    const { code } = await (signal === 'SIGTERM' ? pod.sigterm() : pod.sigkill());
    if (signal === 'SIGTERM' && code !== 0)
      complaints.push(`${pod.name} left with ${code}:\n${pod.logs.slice(-5).join('\n')}`);
    await rig.startAgain(pod);
  };
  const acts: Readonly<Record<string, () => Promise<void> | void>> = {
    'pod SIGKILL': () => restarted(any(rig.pods), 'SIGKILL'),
    'pod SIGTERM': () => restarted(any(rig.pods), 'SIGTERM'),
    'pod SIGSTOP': async () => {
      const pod = any(rig.pods);
      note(`it is ${pod.name}`);
      pod.pause();
      await sleep(500 + random() * 4500);
      pod.resume();
    },
    'daemons cut': () => {
      const { daemon } = any(served);
      for (let n = 0; n < 10; n++) daemon.tell('drop', { daemon: Math.floor(random() * daemon.settings.users.length) });
    },
    'callers cut': () => {
      for (const { client } of callers)
        if (random() < 0.5 && client.socket.io.engine?.readyState === 'open') client.cut();
    },
    'link cut': () => void any(rig.proxies).rst(),
    'link black': async () => {
      const proxy = any(rig.proxies);
      note(`it is that of pod-${rig.proxies.indexOf(proxy)}`);
      proxy.blackhole(true);
      await sleep(500 + random() * 2500);
      proxy.blackhole(false);
    },
    'Redis SIGSTOP': async () => {
      rig.redis.pause();
      await sleep(300 + random() * 1500);
      rig.redis.resume();
    },
  };
  const inflicted: Record<string, number> = {};
  const endsAt = Date.now() + runMs;
  while (Date.now() < endsAt) {
    await sleep(calmMs * (0.5 + random()));
    const name = any(Object.keys(acts));
    inflicted[name] = (inflicted[name] ?? 0) + 1;
    note(`${name} begins`);
    await acts[name]?.();
    note(`${name} is over`);
    for (const pod of rig.pods)
      if (!pod.isRunning) {
        complaints.push(`${pod.name} ended by itself:\n${pod.logs.slice(-5).join('\n')}`);
        await rig.startAgain(pod);
      }
  }
  await rig.allUp();
  const told = await load.stop();
  for (const each of told) {
    const { startedAt, user } = each.call;
    if (!each.answer?.ok) note(`${wordOf(each)} after ${each.ms} ms of ${user}`, startedAt + each.ms);
  }
  for (const { daemon } of served)
    for (const { at, note: kind, daemon: index, reason } of daemon.notes)
      if (kind === 'disconnect') note(`a daemon lost its connection: ${index}, ${reason}`, at);
  const startedAt = told[0]?.call.startedAt ?? 0;
  const story = events
    .sort((a, b) => a.at - b.at)
    .map(({ at, what }) => `${((at - startedAt) / 1000).toFixed(2)}: ${what}`);
  const executions = await rig.book.executions();
  const pending = await Promise.all(rig.pods.map((pod) => rig.metric(pod, 'holdfast_rpc_inflight')));
  for (const { client } of callers) await client.stop();
  for (const { daemon } of served) await daemon.kill();
  return {
    calls: told.length,
    outcomes: tally(told),
    executions: executions.length,
    ran: new Set(executions.map(({ key }) => key)).size,
    slowestMs: slowest(told),
    inflicted,
    story,
    pending,
    faults: printFaults(await rig.book.check()),
    complaints,
  };
}
