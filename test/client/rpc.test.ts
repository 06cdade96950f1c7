import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { CallError, Client, IncomingCall } from '../../src/client/index.js';
import { type Stack, startStack } from '../gateway/fixture.js';
import { type Haproxy, startHaproxy } from '../harness/haproxy.js';
import type { Pod } from '../harness/pod.js';
import { eventually as within5s } from '../harness/poll.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { open, someone, type Told, tokens } from './fixture.js';

let stack: Stack;
let haproxy: Haproxy;

beforeAll(async () => {
  stack = await startStack(3, { env: { HOLDFAST_RPC_GRACE_MS: '3s', HOLDFAST_DRAIN_MS: '400ms' } });
  haproxy = await startHaproxy({
    backends: stack.pods.map(({ port, opsPort }) => ({ host: '127.0.0.1', port, opsPort })),
  });
});
afterAll(async () => {
  await haproxy?.stop();
  await stack?.stop();
});

/** Long, as a pod may have to be found dead by a balancer on a busy machine. */
const eventually = (holds: Parameters<typeof within5s>[0], what?: string) =>
  within5s(holds, { withinMs: 20_000, what });

/** Two clients of one user. */
function pair(daemonUrl: string, callerUrl: string) {
  const token = tokens({ sub: someone() });
  const [daemon, caller] = [open(daemonUrl, { token }), open(callerUrl, { token })];
  return {
    daemon: daemon.client,
    caller: caller.client,
    told: { daemon, caller },
    [Symbol.asyncDispose]: () => Promise.all([daemon.client.close(), caller.client.close()]).then(() => {}),
  };
}

const acrossPods = () => pair(stack.pod(0).url, stack.pod(1).url);

/** It has lost its connection, which may be back already. */
const lost = ({ states }: Told) => eventually(() => states.includes('connecting'), 'a connection to be lost');

/** A handler that says when it was begun, ends when it is told, and counts. */
function slow(client: Client, method = 'work') {
  const calls: IncomingCall[] = [];
  let finish: (result: unknown) => void = () => {};
  const finished = new Promise<unknown>((resolve) => {
    finish = resolve;
  });
  const registration = client.register(method, (_params, call) => {
    calls.push(call);
    return finished;
  });
  return { registration, calls, finish, begun: () => eventually(() => calls.length > 0, 'a call to begin') };
}

/** What a call was rejected with. */
async function failureOf(call: Promise<unknown>): Promise<CallError> {
  const outcome = await call.then(
    (result) => ({ result }),
    (error: CallError) => ({ error }),
  );
  if ('error' in outcome) return outcome.error;
  throw new Error(`it has a result: ${JSON.stringify(outcome.result)}`);
}

/** The pod whose series is 1, where it is 0 on all others that run, and one of those. */
async function podsOf(series: string): Promise<{ its: Pod; other: Pod }> {
  const pods = stack.pods.filter(({ isRunning }) => isRunning);
  let values: (number | undefined)[] = [];
  await eventually(async () => {
    values = (await Promise.all(pods.map((pod) => pod.metrics()))).map((metrics) => metrics.get(series));
    expect(values.toSorted()).toEqual([...pods.slice(1).map(() => 0), 1]);
  });
  return { its: pods[values.indexOf(1)] as Pod, other: pods[values.indexOf(0)] as Pod };
}

describe('a call', () => {
  test('has what the handler returns, whatever that is, on whichever pods they are', async () => {
    await using both = acrossPods();
    const seen: unknown[] = [];
    const registration = both.daemon.register('echo', (params, call) => {
      seen.push(call);
      return params;
    });
    await registration.ready;
    const startedAt = Date.now();
    for (const value of ['text', '', 7, false, null, [1, { a: 'ü' }], { error: 'a result', ok: false }])
      expect(await both.caller.call('echo', value)).toEqual(value);
    expect(await both.caller.call('echo')).toBe(null);
    const binary = await both.caller.call<{ at: Buffer[] }>('echo', { at: [Buffer.from([0, 255, 7])] });
    expect([...(binary.at[0] as Buffer)]).toEqual([0, 255, 7]);
    expect(seen[0]).toMatchObject({
      id: expect.any(String),
      method: 'echo',
      attempt: 1,
      signal: expect.any(AbortSignal),
    });
    const { deadline } = seen[0] as IncomingCall;
    expect(Math.abs(deadline - startedAt - 30_000)).toBeLessThan(2000);
  });

  test('of somebody else reaches his methods', async () => {
    const other = someone();
    const { client: daemon } = open(stack.pod(0).url, { token: tokens({ sub: other }) });
    const { client: caller } = open(stack.pod(1).url);
    await using _ = daemon;
    await using __ = caller;
    await daemon.register('whoami', () => other).ready;
    expect(await caller.call('whoami', undefined, { user: other })).toBe(other);
    expect(await failureOf(caller.call('whoami'))).toMatchObject({ code: 'no_worker', mayHaveRun: false });
  });

  test('has the text of what its handler throws, and is not repeated', async () => {
    await using both = acrossPods();
    let runs = 0;
    await both.daemon.register('fail', () => {
      runs++;
      throw new Error('out of paper');
    }).ready;
    const failed = await failureOf(both.caller.call('fail'));
    expect(failed).toMatchObject({
      code: 'handler_error',
      message: 'out of paper',
      retryable: false,
      mayHaveRun: true,
    });
    expect(runs).toBe(1);
  });

  test('whose result is too large, or none that can be sent, says so', async () => {
    await using both = acrossPods();
    const results: Record<string, unknown> = { large: 'x'.repeat(3_000_000), bigint: 1n };
    await both.daemon.register('make', (what: string) => results[what]).ready;
    const failures = await Promise.all(['large', 'bigint'].map((what) => failureOf(both.caller.call('make', what))));
    expect(failures.map(({ code }) => code)).toEqual(['handler_error', 'handler_error']);
    expect(failures[0]?.message).toBe('the result: 3000002 bytes, the limit is 1000000');
    expect(failures[1]?.message).toMatch(/BigInt/);
  });

  test('that cannot be made fails at once, with what is wrong', async () => {
    await using both = acrossPods();
    await both.caller.live();
    const wrong = [
      both.caller.call('m', 'x'.repeat(3_000_000)),
      both.caller.call('m', 1n),
      both.caller.call('m', null, { timeoutMs: 0 }),
      both.caller.call('m', null, { waitForWorkerMs: -1 }),
      both.caller.call(''),
      both.caller.call('absent'),
    ];
    const failures = await Promise.all(wrong.map(failureOf));
    const bad = 'bad_request';
    expect(failures.map(({ code }) => code)).toEqual(['payload_too_large', bad, bad, bad, bad, 'no_worker']);
    expect(failures.map(({ mayHaveRun }) => mayHaveRun)).toEqual([false, false, false, false, false, false]);
    expect(both.caller.status.state).toBe('live');
  });

  test('that is aborted is cancelled, and its handler hears so', async () => {
    await using both = acrossPods();
    const work = slow(both.daemon);
    await work.registration.ready;
    const controller = new AbortController();
    const failed = failureOf(both.caller.call('work', null, { signal: controller.signal }));
    await work.begun();
    controller.abort(new Error('enough'));
    expect(await failed).toMatchObject({ code: 'cancelled', mayHaveRun: true, cause: new Error('enough') });
    const [call] = work.calls as [IncomingCall];
    await eventually(() => call.signal.aborted);
    expect(call.signal.reason).toMatchObject({ code: 'cancelled' });
    const before = failureOf(both.caller.call('work', null, { signal: controller.signal }));
    expect(await before).toMatchObject({ code: 'cancelled', mayHaveRun: false });
    expect(work.calls).toHaveLength(1);
  });

  test('is given up at its end, with word of whether it may have run', async () => {
    await using both = acrossPods();
    const work = slow(both.daemon);
    await work.registration.ready;
    const startedAt = performance.now();
    const begun = await failureOf(both.caller.call('work', null, { timeoutMs: 300 }));
    expect(begun).toMatchObject({ code: 'timeout', mayHaveRun: true });
    await eventually(() => work.calls[0]?.signal.aborted === true);
    const waited = await failureOf(both.caller.call('absent', null, { timeoutMs: 300, waitForWorkerMs: 5000 }));
    expect(waited).toMatchObject({ code: 'timeout', mayHaveRun: false });
    const { client: lonely } = open('http://127.0.0.1:1');
    await using _ = lonely;
    const unsent = await failureOf(lonely.call('work', null, { timeoutMs: 300 }));
    expect(unsent).toMatchObject({ code: 'timeout', mayHaveRun: false });
    expect(performance.now() - startedAt).toBeLessThan(3 * 300 + 2000);
  });

  test('of many at once goes through, at the rate that the relay allows', async () => {
    await using both = acrossPods();
    await both.daemon.register('echo', (n) => n).ready;
    await both.caller.live();
    const calls = Array.from({ length: 500 }, (_, n) => both.caller.call('echo', n));
    expect(await Promise.all(calls)).toEqual(calls.map((_, n) => n));
  });

  test('beyond a thousand that wait is refused unsent', async () => {
    const { client } = open('http://127.0.0.1:1');
    const calls = Array.from({ length: 1000 }, () => failureOf(client.call('work')));
    expect(await failureOf(client.call('work'))).toMatchObject({ code: 'overloaded', mayHaveRun: false });
    await client.close();
    for (const failed of await Promise.all(calls))
      expect(failed).toMatchObject({ code: 'cancelled', mayHaveRun: false });
  });

  test('that waits fails when its client is closed, and no other can be made', async () => {
    const both = acrossPods();
    const work = slow(both.daemon);
    await work.registration.ready;
    const waiting = failureOf(both.caller.call('work'));
    await work.begun();
    await both.caller.close();
    expect(await waiting).toMatchObject({ code: 'cancelled', mayHaveRun: true });
    expect(await failureOf(both.caller.call('work'))).toMatchObject({ code: 'cancelled', mayHaveRun: false });
    await both.daemon.close();
    expect(work.calls[0]?.signal.aborted).toBe(true);
    expect(() => both.daemon.register('work', () => 1)).toThrow('the client is closed');
  });
});

describe('over the end of a connection', () => {
  test('a reply that is lost on its way to the caller comes again, and nothing runs twice', async () => {
    await using proxy = await startTcpProxy(stack.pod(0).port);
    await using both = pair(stack.pod(1).url, `http://127.0.0.1:${proxy.port}`);
    let runs = 0;
    await both.daemon.register('count', () => ++runs).ready;
    await both.caller.live();
    proxy.dropReplies(true);
    const result = both.caller.call('count');
    await eventually(() => runs === 1);
    proxy.dropReplies(false);
    proxy.rst();
    expect(await result).toBe(1);
    expect(runs).toBe(1);
  });

  test('what the caller does to its params afterwards is no other call', async () => {
    await using proxy = await startTcpProxy(stack.pod(0).port);
    await using both = pair(stack.pod(1).url, `http://127.0.0.1:${proxy.port}`);
    const seen: unknown[] = [];
    let finish: () => void = () => {};
    const finished = new Promise<void>((resolve) => {
      finish = resolve;
    });
    await both.daemon.register('work', async (params) => {
      seen.push(params);
      await finished;
      return seen.length;
    }).ready;
    await both.caller.live();
    const params = { step: 1 };
    const call = both.caller.call('work', params);
    await eventually(() => seen.length > 0, 'a call to begin');
    params.step = 2;
    proxy.rst();
    await lost(both.told.caller);
    finish();
    expect(await call).toBe(1);
    expect(seen).toEqual([{ step: 1 }]);
  });

  test('an answer that is lost on its way from the daemon is given again, and nothing runs twice', async () => {
    await using proxy = await startTcpProxy(stack.pod(0).port);
    await using both = pair(`http://127.0.0.1:${proxy.port}`, stack.pod(1).url);
    let runs = 0;
    const registration = both.daemon.register('count', () => {
      proxy.holdRequests(true);
      return ++runs;
    });
    await registration.ready;
    const result = both.caller.call('count');
    await eventually(() => runs === 1);
    proxy.rst();
    proxy.holdRequests(false);
    expect(await result).toBe(1);
    expect(runs).toBe(1);
  });

  test('an aborted call is cancelled when the connection is back', async () => {
    await using proxy = await startTcpProxy(stack.pod(0).port);
    await using both = pair(stack.pod(1).url, `http://127.0.0.1:${proxy.port}`);
    const work = slow(both.daemon);
    await work.registration.ready;
    const controller = new AbortController();
    const failed = failureOf(both.caller.call('work', null, { signal: controller.signal }));
    await work.begun();
    await proxy.refuse(true);
    proxy.rst();
    await lost(both.told.caller);
    controller.abort();
    expect(await failed).toMatchObject({ code: 'cancelled', mayHaveRun: true });
    expect(work.calls[0]?.signal.aborted).toBe(false);
    await proxy.refuse(false);
    await eventually(() => work.calls[0]?.signal.aborted === true);
  });

  test('a daemon that dies over a call loses it; one that may run twice is made again', async () => {
    const token = tokens({ sub: someone() });
    const { client: caller } = open(stack.pod(1).url, { token });
    await using _ = caller;
    for (const idempotent of [false, true]) {
      const { client: first } = open(stack.pod(0).url, { token });
      const work = slow(first);
      await work.registration.ready;
      const outcome = caller.call('work', null, { idempotent }).catch((error: CallError) => error);
      await work.begun();
      // as a process that dies: without a word, and what it remembers is gone
      const { client: second } = open(stack.pod(0).url, { token });
      await using __ = second;
      first.socket.io.engine.close();
      void first.close();
      await second.register('work', () => 'by the second').ready;
      if (idempotent) expect(await outcome).toBe('by the second');
      else expect(await outcome).toMatchObject({ code: 'worker_lost', mayHaveRun: true, retryable: true });
    }
  });
});

describe('a registration', () => {
  test('that a newer one replaces hears so, stays behind, and takes the method back when it is told to', async () => {
    const token = tokens({ sub: someone() });
    const told = open(stack.pod(0).url, { token });
    const [older, newer] = [told.client, open(stack.pod(1).url, { token }).client];
    const { client: caller } = open(stack.pod(0).url, { token });
    await using _ = older;
    await using __ = newer;
    await using ___ = caller;
    const replaced: unknown[] = [];
    const first = older.register('who', () => 'older');
    first.on('replaced', (told) => replaced.push(told));
    await first.ready;
    expect(await caller.call('who')).toBe('older');
    const second = newer.register('who', () => 'newer');
    await second.ready;
    await eventually(() => first.state === 'replaced');
    expect(replaced).toEqual([{ method: 'who' }]);
    expect(await caller.call('who')).toBe('newer');

    // not at a reconnect either
    older.socket.io.engine.close();
    await lost(told);
    await older.live();
    await older.presence();
    expect(first.state).toBe('replaced');
    expect(await caller.call('who')).toBe('newer');

    await first.register();
    expect(await caller.call('who')).toBe('older');
    await eventually(() => second.state === 'replaced');
  });

  test('that is replaced while its client is away is not taken back by a client that is recovered', async () => {
    const token = tokens({ sub: someone() });
    await using proxy = await startTcpProxy(stack.pod(0).port);
    const told = open(`http://127.0.0.1:${proxy.port}`, { token });
    const [older, newer] = [told.client, open(stack.pod(1).url, { token }).client];
    await using _ = older;
    await using __ = newer;
    const [stays, leaves] = [older.register('stays', () => 'older'), older.register('leaves', () => 'older')];
    await Promise.all([stays.ready, leaves.ready]);
    await proxy.refuse(true);
    proxy.rst();
    await lost(told);
    await newer.register('leaves', () => 'newer').ready;
    await proxy.refuse(false);
    await older.live();
    expect(older.socket.recovered).toBe(true);
    await eventually(() => leaves.state === 'replaced');
    expect(stays.state).toBe('registered');
    const { client: caller } = open(stack.pod(1).url, { token });
    await using ___ = caller;
    expect(await Promise.all([caller.call('stays'), caller.call('leaves')])).toEqual(['older', 'newer']);
  });

  test('that is ended is gone at once; what is in work is answered, and waited for', async () => {
    await using both = acrossPods();
    const work = slow(both.daemon);
    await work.registration.ready;
    const result = both.caller.call('work');
    await work.begun();
    let isOver = false;
    const over = work.registration.unregister().then(() => {
      isOver = true;
    });
    await eventually(async () => {
      expect(await failureOf(both.caller.call('work'))).toMatchObject({ code: 'no_worker', mayHaveRun: false });
    });
    expect(isOver).toBe(false);
    work.finish('done');
    expect(await result).toBe('done');
    await over;
    await expect(work.registration.register()).rejects.toMatchObject({ code: 'cancelled' });
    await both.daemon.register('work', () => 'again').ready;
    expect(await both.caller.call('work')).toBe('again');
  });

  test('ends with its client, and calls know it at once', async () => {
    await using both = acrossPods();
    await both.daemon.register('work', () => 1).ready;
    expect(await both.caller.call('work')).toBe(1);
    await both.daemon.close();
    await eventually(async () => {
      const startedAt = performance.now();
      expect(await failureOf(both.caller.call('work'))).toMatchObject({ code: 'no_worker', mayHaveRun: false });
      expect(performance.now() - startedAt).toBeLessThan(1000);
    });
  });

  test('that the token does not allow is refused, as is a second one of the same client', async () => {
    const { client, errors } = open(stack.pod(0).url, { token: tokens({ caps: { register: [] } }) });
    await using _ = client;
    const refused = client.register('work', () => 1);
    await expect(refused.ready).rejects.toMatchObject({ code: 'permission_denied' });
    expect(refused.state).toBe('ended');
    expect(errors).toMatchObject([{ code: 'permission_denied' }]);
    await using both = acrossPods();
    both.daemon.register('work', () => 1);
    expect(() => both.daemon.register('work', () => 2)).toThrow('"work" is registered already');
  });

  test('that is made in the turn that creates the client, or while there is no connection, is there with the connection', async () => {
    await using proxy = await startTcpProxy(stack.pod(0).port);
    await using both = pair(`http://127.0.0.1:${proxy.port}`, stack.pod(1).url);
    const early = both.daemon.register('early', () => 1);
    await early.ready;
    await proxy.refuse(true);
    proxy.rst();
    await lost(both.told.daemon);
    const later = both.daemon.register('later', () => 2);
    await early.unregister();
    await proxy.refuse(false);
    await later.ready;
    expect(await both.caller.call('later')).toBe(2);
    await eventually(async () => {
      expect(await failureOf(both.caller.call('early', null, { waitForWorkerMs: 0 }))).toMatchObject({
        code: 'no_worker',
      });
    });
  });
});

test('an answer never goes out on another connection than its question came by', async () => {
  await using proxy = await startTcpProxy(stack.pod(0).port);
  await using both = pair(`http://127.0.0.1:${proxy.port}`, stack.pod(1).url);
  const finish = new Map<string, (value: string) => void>();
  const registration = both.daemon.register('work', (name: string) => {
    return new Promise<string>((resolve) => finish.set(name, resolve));
  });
  await registration.ready;
  const first = both.caller.call('work', 'first');
  await eventually(() => finish.has('first'));

  const [asked, answered]: [string[], string[]] = [[], []];
  both.daemon.socket.io.once('open', () => {
    // as Socket.IO writes them: type, number, JSON
    const note = (pattern: RegExp, numbers: string[]) => (packet: { data?: unknown }) => {
      const number = pattern.exec(String(packet.data))?.[1];
      if (number !== undefined) numbers.push(number);
    };
    both.daemon.socket.io.engine.on('packet', note(/^2(\d+)\["rpc-request"/, asked));
    both.daemon.socket.io.engine.on('packetCreate', note(/^3(\d+)\[/, answered));
  });
  proxy.rst();
  await eventually(() => asked.length === 1, 'the first call to come again');
  const second = both.caller.call('work', 'second');
  await eventually(() => finish.has('second'));
  finish.get('first')?.('first');
  finish.get('second')?.('second');
  expect(await Promise.all([first, second])).toEqual(['first', 'second']);
  expect(answered.toSorted()).toEqual(asked.toSorted());
});

test('presence says which devices and methods somebody has, and tells when that changes', async () => {
  const sub = someone();
  const { client } = open(stack.pod(0).url, { token: tokens({ sub, device: 'desk' }) });
  await using _ = client;
  const told: unknown[] = [];
  client.on('presence', (change) => told.push(change));
  await client.register('work', () => 1).ready;
  const { client: phone } = open(stack.pod(1).url, { token: tokens({ sub, device: 'phone' }) });
  await using __ = phone;
  await phone.live();
  const phoneIs = (online: boolean) => ({ user: sub, device: 'phone', online, at: expect.any(Number) });
  await eventually(() => expect(told).toContainEqual(phoneIs(true)));
  const { devices, methods } = await client.presence();
  expect(devices.map(({ device }) => device).toSorted()).toEqual(['desk', 'phone']);
  expect(devices[0]).toEqual({ device: expect.any(String), since: expect.any(Number), sockets: 1 });
  expect(methods).toEqual(['work']);
  await phone.close();
  await eventually(() => expect(told).toContainEqual(phoneIs(false)));
  await expect(phone.presence()).rejects.toMatchObject({ code: 'cancelled' });
});

/** The last ones, as two of the three pods are gone then. */
describe('the end of a pod', () => {
  test.each(['SIGTERM', 'SIGKILL'])(
    'of a daemon by %s costs a call nothing: it is answered by the one run',
    async (end) => {
      const token = tokens({ sub: someone() });
      const told = open(haproxy.url, { token });
      const { client: daemon } = told;
      await using _ = daemon;
      const work = slow(daemon);
      await work.registration.ready;
      const { its, other } = await podsOf('holdfast_rpc_registrations');
      const { client: caller } = open(other.url, { token });
      await using __ = caller;
      const result = caller.call('work', { n: 1 });
      await work.begun();
      const exit = end === 'SIGTERM' ? its.sigterm() : its.sigkill();
      await lost(told);
      await daemon.live();
      work.finish('done');
      expect(await result).toBe('done');
      expect(work.calls).toHaveLength(1);
      expect(await exit).toMatchObject(end === 'SIGTERM' ? { code: 0 } : { signal: end });
      if (end === 'SIGTERM') await its.start();
    },
  );

  test('of a caller costs its calls nothing: each has its one result, before and after it is there', async () => {
    const token = tokens({ sub: someone() });
    const told = open(haproxy.url, { token });
    const { client: caller } = told;
    await using _ = caller;
    await caller.live();
    const { its, other } = await podsOf('holdfast_connections');
    const { client: daemon } = open(other.url, { token });
    await using __ = daemon;
    const [early, late] = [slow(daemon, 'early'), slow(daemon, 'late')];
    await Promise.all([early.registration.ready, late.registration.ready]);
    const results = Promise.all([caller.call('early'), caller.call('late')]);
    await Promise.all([early.begun(), late.begun()]);
    await its.sigkill();
    await lost(told);
    early.finish('early');
    await caller.live();
    late.finish('late');
    expect(await results).toEqual(['early', 'late']);
    expect([early.calls.length, late.calls.length]).toEqual([1, 1]);
  });
});
