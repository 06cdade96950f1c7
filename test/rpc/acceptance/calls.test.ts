import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { connect } from '../../harness/client.js';
import { eventually } from '../../harness/poll.js';
import { printFaults } from '../../harness/rpc-ledger.js';
import { RpcRig, someone } from '../../harness/rpc-rig.js';
import { ALL_CAPS, token } from '../../harness/token.js';
import { callAbsent, registerInTheSameTick } from './calls.js';
import { begun } from './daemons.js';

// calls.long.test.ts has 1,000 calls and 500 rounds

let rig: RpcRig;
beforeAll(async () => {
  rig = await RpcRig.start();
});
afterAll(() => rig?.[Symbol.asyncDispose]());

it('a method that nobody registered is known to be absent in milliseconds, and leaves no key', async () => {
  const absent = await callAbsent(rig, 300);
  expect(absent.outcomes).toEqual({ no_worker: 300 });
  // a machine that is busy for a moment delays both
  expect(absent.p99Ms).toBeLessThan(100 + absent.servedP99Ms);
  expect(absent.keysLeft).toEqual([]);
});

it('what registers in the same tick as it connects is there for callers on every pod, once it is told so', async () => {
  expect(await registerInTheSameTick(rig, 25)).toEqual({ ok: 75 });
});

describe.concurrent('an id', () => {
  it('of two callers of one target is two calls', async () => {
    const { user } = await rig.daemon();
    const callers = [await rig.caller(), await rig.caller()];
    const id = someone('id');
    const told = await Promise.all(callers.map((caller) => caller.call('work', { user, id, ms: 200 })));
    for (const { answer, call } of told) expect(answer).toMatchObject({ ok: true, result: { key: call.key } });
    for (const { call } of told) expect(await rig.book.runsOf(call.key)).toBe(1);
  });

  it('that a caller uses for another payload or method is a conflict, during the call and after it', async () => {
    const { user } = await rig.daemon({ methods: ['work', 'other'] });
    const caller = await rig.caller();
    const id = someone('id');
    const first = caller.call('work', { user, id, ms: 500 });
    await begun(rig, caller);
    for (const phase of ['during', 'after']) {
      const told = [
        await caller.call('work', { user, id, params: { more: 1 } }),
        await caller.call('other', { user, id }),
      ];
      expect([phase, ...told.map(({ answer }) => answer?.code)]).toEqual([phase, ...Array(2).fill('conflict')]);
      for (const { answer } of told) expect(answer).toMatchObject({ ok: false, retryable: false });
      expect((await first).answer?.ok).toBe(true);
    }
  });

  it('with the same method and payload is the same call, on any connection of its caller', async () => {
    const { user } = await rig.daemon({ kind: 'raw' });
    const one = await rig.caller();
    const two = await rig.caller(one.user);
    const request = {
      method: 'work',
      user,
      id: someone('id'),
      params: { key: someone('same'), ms: 400 },
      timeoutMs: 5000,
    };
    const before = await Promise.all([one, two, one].map(({ client }) => client.request('rpc-call', request)));
    const after = await two.client.request('rpc-call', request);
    const attached = await one.client.request('rpc-attach', { id: request.id, user });
    for (const answer of [...before, after, attached])
      expect(answer).toMatchObject({ ok: true, result: { key: request.params.key } });
    expect(await rig.book.runsOf(request.params.key)).toBe(1);
    const stranger = await rig.caller();
    const foreign = await stranger.client.request('rpc-attach', { id: request.id, user });
    expect(foreign).toMatchObject({ ok: false, code: 'bad_request' });
  });

  it('of a call cancels it for a foreign target: the caller is told, and so is the daemon', async () => {
    const { daemon, user } = await rig.daemon({ kind: 'raw' });
    const caller = await rig.caller();
    const id = someone('id');
    const running = caller.call('work', { user, id, ms: 5000 });
    await begun(rig, caller);
    const stranger = await rig.caller();
    await stranger.client.request('rpc-cancel', { id, user });
    expect(await caller.client.request('rpc-cancel', { id, user })).toEqual({ ok: true });
    const { answer, ms } = await running;
    expect(answer).toMatchObject({ ok: false, code: 'cancelled', mayHaveRun: true });
    expect(ms).toBeLessThan(3000);
    await eventually(() => daemon.notesOf('cancelled').length === 1, { what: 'rpc-cancelled' });
    expect(daemon.notesOf('cancelled')).toMatchObject([{ reason: 'cancelled' }]);
  });
});

describe.concurrent('a call', () => {
  it('of a handler that fails hears its text, and what only looks like a failure is a result', async () => {
    const { user } = await rig.daemon({ kind: 'raw' });
    const caller = await rig.caller();
    const failed = await caller.call('work', { user, params: { fails: 'no paper' } });
    expect(failed.answer).toEqual({
      ok: false,
      error: 'no paper',
      code: 'handler_error',
      retryable: false,
      mayHaveRun: true,
    });
  });

  it('that a stock client sends again by itself runs once, though its pod was paused', async () => {
    const { user } = await rig.daemon({ kind: 'raw' });
    const callerOn = await rig.callerPerPod();
    const pod = rig.pods.find((each) => each !== rig.pods[0]);
    if (!pod) throw new Error('no pod');
    const { client } = callerOn(pod);
    const key = someone('retried');
    const request = { method: 'work', user, id: key, params: { key } };
    pod.pause();
    const tries = [1, 2, 3, 4].map(() => client.socket.timeout(1000).emitWithAck('rpc-call', request));
    await Promise.allSettled(tries);
    pod.resume();
    const answer = await client.request('rpc-call', request);
    expect(answer).toMatchObject({ ok: true, result: { key } });
    expect(await rig.book.runsOf(key)).toBe(1);
  });

  it('whose caller leaves is finished in silence, and leaves nothing pending', async () => {
    const { user } = await rig.daemon({ kind: 'raw' });
    const clients = await Promise.all(
      Array.from({ length: 20 }, async () =>
        connect(rig.haproxy.url, { token: await token({ sub: someone(), caps: ALL_CAPS }) }),
      ),
    );
    const keys = clients.flatMap((client) =>
      Array.from({ length: 2 }, () => {
        const key = someone('left');
        client.socket.emit('rpc-call', { method: 'work', user, params: { key, ms: 800 } }, () => {});
        return key;
      }),
    );
    await eventually(async () => {
      const ran = new Set((await rig.book.executions()).map((execution) => execution.key));
      return keys.every((key) => ran.has(key));
    });
    await Promise.all(clients.map((client) => client.stop()));
    const caller = await rig.caller();
    expect((await caller.call('work', { user, ms: 1000 })).answer?.ok).toBe(true);
    for (const key of keys) expect(await rig.book.runsOf(key)).toBe(1);
  });

  it('of a raw daemon whose process is blocked for long runs once, though another daemon of the method is there', async () => {
    const older = await rig.daemon({ kind: 'raw' });
    const caller = await rig.caller();
    const running = caller.call('work', { user: older.user, params: { busyMs: 4000 } });
    await begun(rig, caller);
    const newer = await rig.daemon({ kind: 'raw', users: [older.user] });
    const told = await running;
    expect(await rig.book.runsOf(told.call.key)).toBe(1);
    expect((await caller.call('work', { user: older.user })).answer?.result).toMatchObject({ pid: newer.daemon.pid });
  });

  it('without a callback, or of any other form, harms nobody', async () => {
    const { user } = await rig.daemon({ kind: 'raw' });
    const { client } = await rig.caller();
    for (const payload of [undefined, null, 1, 'x', [], {}, { method: 7 }, { method: 'work', timeoutMs: -1 }]) {
      client.socket.emit('rpc-call', payload);
      const ack = await client.request('rpc-call', payload);
      expect(ack).toMatchObject({ ok: false, code: 'bad_request', retryable: false });
    }
    expect(await client.request('rpc-call', {})).toMatchObject({ error: 'Invalid parameters: method is required' });
    const caller = await rig.caller();
    expect((await caller.call('work', { user })).answer?.ok).toBe(true);
  });
});

it('each of these calls had one outcome by its deadline, and ran as often as it said', async () => {
  const ledger = await rig.book.check();
  // calls that were sent past the account
  const { stray, ...details } = ledger.details;
  expect(stray?.filter((text) => !/^(same|retried|left)-/.test(text)) ?? []).toEqual([]);
  expect(details).toEqual({});
  expect(printFaults({ ...ledger, faults: 0 })).toBe('');
});
