import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { eventually } from '../../harness/poll.js';
import type { Caller, Told } from '../../harness/rpc-calls.js';
import { printFaults } from '../../harness/rpc-ledger.js';
import { RpcRig } from '../../harness/rpc-rig.js';
import { begun, daemonPauses, daemonRestarts, massStorm, reconnectStorm, untilCallable } from './daemons.js';

// daemons.long.test.ts has the full durations

/** The default, `HOLDFAST_RPC_GRACE_MS`. */
const GRACE_MS = 8000;

let rig: RpcRig;
beforeAll(async () => {
  rig = await RpcRig.start();
});
afterAll(() => rig?.[Symbol.asyncDispose]());

/** Of some calls, one after another: what waits for nobody is quick at least once, however busy the machine is for a moment. */
async function tellsAtOnce(caller: Caller, user: string) {
  const told: Told[] = [];
  for (let n = 0; n < 3; n++) told.push(await caller.call('work', { user }));
  return { answers: told.map(({ answer }) => answer), leastMs: Math.min(...told.map(({ ms }) => ms)) };
}

describe.concurrent('a daemon', () => {
  it.each([
    ['instance', { outcome: 'worker_lost', mayHaveRun: true, runs: 1 }],
    ['raw', { outcome: 'worker_lost', mayHaveRun: true, runs: 1 }],
    ['durable', { outcome: 'ok', runs: 2 }],
  ] as const)(
    'of kind %s, killed and started again in the middle of a call, runs it no oftener than it vouched for',
    async (kind, expected) => {
      const { afterReturnMs, ...restarted } = await daemonRestarts(rig, kind);
      expect(restarted).toMatchObject(expected);
      if (kind !== 'durable') expect(afterReturnMs).toBeLessThan(1000);
    },
  );

  it('that is raw, killed and started again, gives an idempotent call its answer', async () => {
    expect(await daemonRestarts(rig, 'raw', true)).toMatchObject({ outcome: 'ok', runs: 2 });
  });

  it('that reconnects again and again fails no call of five callers', async () => {
    const storm = await reconnectStorm(rig, { reconnects: 5, callers: 5, everyMs: 200 });
    expect(storm.outcomes).toEqual({ ok: storm.calls });
    expect(storm.calls).toBeGreaterThan(100);
  });

  it('whose process was paused is callable soon after it goes on', async () => {
    const { outcomes, callableMs } = await daemonPauses(rig, 2500);
    expect(Object.keys(outcomes)).toEqual(['timeout']);
    expect(callableMs).toBeLessThan(2000);
  });

  it('that is gone for good costs its calls the grace, and later ones nothing', async () => {
    const { daemon, user } = await rig.daemon({ kind: 'raw' });
    const caller = await rig.caller();
    const running = caller.call('work', { user, ms: 60_000, timeoutMs: 30_000 });
    await begun(rig, caller);
    await daemon.kill();
    // until its pod has seen the end, a call would be written to a socket that nobody reads
    await eventually(async () => (await rig.methodsOf(user)).get('work') === '-', { what: 'its pod to know' });
    const waiting = caller.call('work', { user, timeoutMs: 30_000 });
    const refusing = caller.call('work', { user, waitForWorkerMs: 0 });
    const lost = { ok: false, code: 'worker_lost', retryable: true };
    // it cannot be given to anybody else, so there is nothing to wait for
    expect((await running).answer).toEqual({ ...lost, error: 'RPC target disconnected', mayHaveRun: true });
    expect((await running).ms).toBeLessThan(GRACE_MS + 1000);
    const { answer, ms } = await waiting;
    expect(answer).toEqual({ ...lost, error: 'RPC target not reachable', mayHaveRun: false });
    expect(ms).toBeGreaterThan(GRACE_MS - 1000);
    expect(ms).toBeLessThan(GRACE_MS + 1500);
    expect((await refusing).ms).toBeLessThan(1000);
    expect((await refusing).answer).toMatchObject({ ok: false, mayHaveRun: false });
    const { answers, leastMs } = await tellsAtOnce(caller, user);
    for (const late of answers)
      expect(late).toMatchObject({ ok: false, code: 'no_worker', error: 'RPC method not available' });
    expect(leastMs).toBeLessThan(500);
  });

  it('that disconnects in the protocol’s way is gone at once', async () => {
    const { daemon, user } = await rig.daemon({ kind: 'raw' });
    const caller = await rig.caller();
    const leftAt = Date.now();
    daemon.tell('disconnect');
    await eventually(async () => (await rig.methodsOf(user)).size === 0, { what: 'the registration to be gone' });
    expect(Date.now() - leftAt).toBeLessThan(1000);
    const { answers, leastMs } = await tellsAtOnce(caller, user);
    expect(answers.map((answer) => answer?.code)).toEqual(Array(3).fill('no_worker'));
    expect(leastMs).toBeLessThan(500);
  });

  it('that unregisters finishes what it has, and gets no more', async () => {
    const { daemon, user } = await rig.daemon({ kind: 'raw' });
    const caller = await rig.caller();
    const running = caller.call('work', { user, ms: 800 });
    await begun(rig, caller);
    daemon.tell('unregister', { method: 'work' });
    await eventually(() => daemon.notesOf('unregistered').length > 0, { what: 'rpc-unregistered' });
    expect((await caller.call('work', { user })).answer?.code).toBe('no_worker');
    expect((await running).answer?.ok).toBe(true);
  });

  it('that loses its method to a newer one is told, stays connected, and gets no more', async () => {
    const older = await rig.daemon({ kind: 'raw' });
    const newer = await rig.daemon({ kind: 'raw', users: [older.user] });
    const caller = await rig.caller();
    await eventually(() => older.daemon.notesOf('unregistered').length > 0, { what: 'rpc-unregistered' });
    expect(older.daemon.notesOf('unregistered')).toMatchObject([{ method: 'work', reason: 'replaced' }]);
    for (let n = 0; n < 10; n++) {
      const { answer } = await caller.call('work', { user: older.user });
      expect(answer?.result).toMatchObject({ pid: newer.daemon.pid });
    }
    expect(older.daemon.notesOf('disconnect')).toEqual([]);
  });

  it('whose state was recovered, and which does not register again, stays callable until it disconnects', async () => {
    const { daemon, user } = await rig.daemon({ kind: 'raw', registers: 'once' });
    const caller = await rig.caller();
    for (let n = 0; n < 3; n++) {
      const cutAt = Date.now();
      daemon.tell('drop');
      await eventually(() => daemon.notesOf('connect', cutAt).length > 0, { what: 'its return', withinMs: 10_000 });
      expect(daemon.notesOf('connect', cutAt)).toMatchObject([{ recovered: true }]);
      expect((await caller.call('work', { user })).answer).toMatchObject({ ok: true });
    }
    daemon.tell('disconnect');
    await eventually(async () => (await rig.methodsOf(user)).size === 0, { what: 'the registration to be gone' });
    expect((await caller.call('work', { user })).answer?.code).toBe('no_worker');
  });

  it('whose ack of a connection that is gone comes over the next one answers nobody else', async () => {
    // the stock client sends it there, under a number that the new connection may have given to another request
    const { daemon, user } = await rig.daemon({ kind: 'raw', reconnectionDelayMs: 50 });
    const caller = await rig.caller();
    for (let round = 0; round < 3; round++) {
      const before = Array.from({ length: 10 }, () => caller.call('work', { user, ms: 600 }));
      await begun(rig, caller);
      const cutAt = Date.now();
      daemon.tell('drop');
      await daemon.registered({ since: cutAt });
      const after = Array.from({ length: 10 }, () => caller.call('work', { user, ms: 1500 }));
      const told = await Promise.all(after);
      expect(told.filter(({ answer, ms }) => !answer?.ok || ms < 1400)).toEqual([]);
      for (const { answer } of await Promise.all(before)) expect(['worker_lost', undefined]).toContain(answer?.code);
    }
  });

  it('that was accepted but is offline past a call’s deadline never runs it', async () => {
    const { daemon, user } = await rig.daemon({ kind: 'instance' });
    const caller = await rig.caller();
    daemon.tell('stayAway');
    await eventually(() => daemon.notesOf('disconnect').length > 0, { what: 'the daemon to be away' });
    const told = await Promise.all(Array.from({ length: 50 }, () => caller.call('work', { user, timeoutMs: 1000 })));
    expect(told.map(({ answer }) => answer?.code)).toEqual(Array(50).fill('timeout'));
    daemon.tell('connect');
    await untilCallable(caller, user);
    for (const { call } of told) expect(await rig.book.runsOf(call.key)).toBe(0);
  });
});

it('a hundred daemons with ten methods each lose no call to the SIGKILL of a pod', async () => {
  const storm = await massStorm(rig, { daemons: 100, processes: 2, methods: 10, calls: 400, perSecond: 80 });
  expect(storm.outcomes).toEqual({ ok: storm.calls });
  expect(storm.movedDaemons).toBeGreaterThan(10);
});

it('each of these calls had one outcome by its deadline, and ran as often as it said', async () => {
  expect(printFaults(await rig.book.check())).toBe('');
  expect(rig.book.calls.length).toBeGreaterThan(500);
});
