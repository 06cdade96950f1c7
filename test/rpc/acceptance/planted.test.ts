import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Server } from 'socket.io';
import { expect, it } from 'vitest';
import { connect } from '../../harness/client.js';
import { CallBook, Caller } from '../../harness/rpc-calls.js';
import { type CallRecord, checkCalls, type Execution } from '../../harness/rpc-ledger.js';
import { RpcRig } from '../../harness/rpc-rig.js';
import { begun } from './daemons.js';

const NOW = 1_000_000;

/** A call that was answered with its own result after 20 ms. */
function call(change: Partial<CallRecord> = {}): CallRecord {
  const key = change.key ?? 'one';
  const answers = [{ at: NOW + 20, answer: { ok: true, result: { key } } }];
  return { key, method: 'work', startedAt: NOW, deadline: NOW + 1000, answers, ...change };
}

const run = (key = 'one', at = NOW + 10): Execution => ({ key, attempt: 1, pid: 1, at });

function refused(code: string, mayHaveRun: boolean, at = NOW + 20): Partial<CallRecord> {
  return { answers: [{ at, answer: { ok: false, code, mayHaveRun } }] };
}

/** Which faults are found. */
function found(calls: readonly CallRecord[], runs: readonly Execution[], now = NOW + 60_000): string[] {
  return Object.keys(checkCalls(calls, runs, now).details);
}

it('the ledger passes one result for one run, a refusal without a run, and a call that is not due yet', () => {
  const calls = [
    call(),
    call({ key: 'two', ...refused('no_worker', false) }),
    call({ key: 'three', deadline: NOW + 90_000, answers: [] }),
    call({ key: 'four', ...refused('worker_lost', true) }),
  ];
  expect(checkCalls(calls, [run(), run('four')], NOW + 60_000)).toEqual({
    calls: 4,
    ok: 1,
    failed: { no_worker: 1, worker_lost: 1 },
    executions: 2,
    faults: 0,
    details: {},
  });
});

it.each([
  ['silent', 'a call without an outcome', [call({ answers: [] })], []],
  ['late', 'an outcome after the deadline', [call({ ...refused('timeout', true, NOW + 1501) })], []],
  ['ranAgain', 'a daemon that runs a call twice', [call()], [run(), run()]],
  ['foreign', "somebody else's result", [call(), call({ key: 'two', answers: call().answers })], [run(), run('two')]],
  ['foreign', 'a result of a handler that never ran', [call()], []],
  ['denied', 'a run that was denied', [call({ ...refused('unavailable', false) })], [run()]],
  ['ranLate', 'a run after the caller was told', [call({ ...refused('unavailable', true) })], [run('one', NOW + 3000)]],
  ['stray', 'a run of no call', [], [run()]],
] as const)('the ledger finds as %s: %s', (fault, _what, calls, runs) => {
  expect(found(calls, runs)).toEqual([fault]);
});

it('the ledger finds two outcomes that contradict each other', () => {
  const answers = [...call().answers, { at: NOW + 30, answer: { ok: false, code: 'worker_lost', mayHaveRun: true } }];
  expect(found([call({ answers })], [run()])).toEqual(['contradicted']);
});

it('a daemon may run a call again only as often as the call allows', () => {
  expect(found([call({ maxRuns: 2 })], [run(), run()])).toEqual([]);
  expect(found([call({ maxRuns: 2 })], [run(), run(), run()])).toEqual(['ranAgain']);
});

it('an ack that comes twice on the wire is found', async () => {
  const http = createServer().listen(0, '127.0.0.1');
  const server = new Server(http);
  server.on('connection', (socket) =>
    socket.on('rpc-call', (_request, ack) => {
      ack({ ok: false, code: 'no_worker' });
      socket.conn.write('30[{"ok":false,"code":"no_worker"}]');
    }),
  );
  await using book = await CallBook.open(0);
  await using client = await connect(`http://127.0.0.1:${(http.address() as AddressInfo).port}`, { token: '' });
  await new Caller(client, 'ann', book).call('work');
  await expect.poll(async () => (await book.check()).details).toEqual({ doubled: ['ann: ack 0'] });
  await server.close();
});

it('real processes that run a call twice, and that leave one without an outcome, are found', async () => {
  await using rig = await RpcRig.start({ pods: 1 });
  const { daemon, user } = await rig.daemon({ kind: 'raw' });
  const caller = await rig.caller();
  // that it may run again is kept from the account
  const running = caller.call('work', { user, ms: 1000, idempotent: true, timeoutMs: 30_000 });
  await begun(rig, caller);
  await daemon.kill();
  daemon.start();
  expect((await running).answer?.ok).toBe(true);
  rig.pods[0]?.pause();
  const unheard = await caller.call('work', { user, timeoutMs: 500 });
  expect(unheard.answer).toBeUndefined();
  expect(Object.keys((await rig.book.check()).details).sort()).toEqual(['ranAgain', 'silent']);
});
