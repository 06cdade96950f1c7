import { randomUUID } from 'node:crypto';
import { fullJitter } from '../core/backoff.js';
import { CallError } from '../core/call-error.js';
import { RelayError } from '../core/errors.js';
import { sleep, within } from '../core/sleep.js';
import { type CallRequest, failureOf, type MethodState, type Outcome, readCall, readName } from '../rpc/index.js';
import { nameOption } from './name-option.js';
import { RpcProcess, type RpcProcessOptions } from './rpc-process.js';

/** How long a Redis that does not answer is waited for. */
const START_MS = 2000;
const NEVER = new AbortController().signal;
/** How long a call that was aborted waits to hear whether it had begun. */
const LAST_WORD_MS = 200;

export interface RpcClientOptions extends RpcProcessOptions {
  /** Whose users are called. Default `default`. */
  readonly tenant?: string;
  /** Ids of calls are this name's: give it to all that should share them, such as a job that may be taken up elsewhere. Default `service`. */
  readonly name?: string;
}

export interface CallOptions {
  /** How long the answer is waited for, in ms; default 30,000, at most 600,000. */
  readonly timeoutMs?: number;
  /** How long a method that nobody serves just now is waited for, in ms; default: by the grace. 0 = not at all. */
  readonly waitForWorkerMs?: number;
  /** It may run again if its worker dies over it. Default false. */
  readonly idempotent?: boolean;
  /** Gives up: `cancelled` at once, and the handler is told so. */
  readonly signal?: AbortSignal;
  /** With the same id, method and params it is the same call, and has its answer. Default: one of its own. */
  readonly id?: string;
}

export interface RpcClient extends AsyncDisposable {
  /**
   * Calls a method of a user, whoever serves it: a daemon behind a relay, a worker, somebody's own Socket.IO server. It outlives
   * the death of the process that serves it, and of this one if it is made again with its id.
   *
   * @throws {CallError} `no_worker`, `worker_lost`, `handler_error`, `timeout`, `cancelled`, `overloaded`, `unavailable`, `conflict`,
   *   `payload_too_large`, `bad_request`; with `mayHaveRun`
   */
  call(user: string, method: string, params?: unknown, options?: CallOptions): Promise<unknown>;
  /**
   * What a user serves just now.
   *
   * @throws {RelayError} `unavailable`
   */
  methods(user: string): Promise<readonly MethodState[]>;
  /** Calls that wait are `unavailable`. Idempotent. */
  close(): Promise<void>;
}

/**
 * Calls from a process of the cluster, without a socket.
 *
 * @param redis an ioredis or node-redis client: it says where Redis is, and its own connection is not used
 * @throws {TypeError} in one line
 */
export function createRpcClient(redis: unknown, options: RpcClientOptions = {}): RpcClient {
  const { tenant = 'default', name = 'service' } = options;
  nameOption('createRpcClient', 'tenant', tenant);
  nameOption('createRpcClient', 'name', name);
  const member = new RpcProcess(redis, options, 'createRpcClient');
  member.start().catch(() => {});
  return clientOf(member, tenant, `service:${name}`);
}

/** Calls through a process that takes part in them already. */
export function clientOf(member: RpcProcess, tenant: string, caller: string): RpcClient {
  const close = (): Promise<void> => member.stop();
  return {
    call: async (user, method, params, { signal, ...options } = {}) => {
      const request = readRequest({ ...options, user: user ?? '', method, params }, { caller, tenant, user });
      const outcome = await make(member, request, signal ?? NEVER);
      if (outcome.ok) return outcome.result;
      throw new CallError(outcome.code, outcome.error, { mayHaveRun: outcome.mayHaveRun });
    },
    methods: async (user) => {
      if (!(await isUp(member, START_MS))) throw new RelayError('unavailable');
      return member.rpc.methodsOf(tenant, readName('user', user));
    },
    close,
    [Symbol.asyncDispose]: close,
  };
}

/** @throws {CallError} `bad_request` */
function readRequest(fields: Parameters<typeof readCall>[0], by: Parameters<typeof readCall>[1]): CallRequest {
  try {
    return readCall(fields, by, () => `c-${randomUUID()}`);
  } catch (cause) {
    const { code, error } = failureOf(cause);
    throw new CallError(code, error, { mayHaveRun: false, cause });
  }
}

async function isUp(member: RpcProcess, withinMs: number): Promise<boolean> {
  const up = member.start().then(() => true);
  return (await within(withinMs, up).catch(() => false)) ?? false;
}

/** What it takes to connect is part of the call's time, and may be aborted as well. */
async function make(member: RpcProcess, request: CallRequest, signal: AbortSignal): Promise<Outcome> {
  const startedAt = performance.now();
  if (signal.aborted) return failureOf(new RelayError('cancelled'));
  let onAbort: () => void = () => {};
  const aborted = new Promise<void>((resolve) => {
    onAbort = () => resolve();
  });
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    await Promise.race([isUp(member, Math.min(START_MS, request.timeoutMs)), aborted]);
    if (signal.aborted) return failureOf(new RelayError('cancelled'));
    const timeoutMs = Math.ceil(request.timeoutMs - (performance.now() - startedAt));
    // a timer may end a millisecond before its time
    if (timeoutMs <= 1) return failureOf(new RelayError('timeout'));
    const calling = member.rpc.call({ ...request, timeoutMs });
    const outcome = await Promise.race([calling, aborted]);
    if (outcome) return outcome;
    void giveUp(member, request, startedAt + request.timeoutMs);
    // in most cases it is known by then whether it had begun
    const lastWord = await within(LAST_WORD_MS, calling);
    return lastWord ?? { ...failureOf(new RelayError('cancelled')), mayHaveRun: true };
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}

/** Until Redis has been told, or nobody would run it any more. */
async function giveUp(member: RpcProcess, request: CallRequest, deadline: number): Promise<void> {
  const { rpc, stopping } = member;
  for (let tries = 0; !stopping.aborted && performance.now() < deadline; tries++) {
    if (await rpc.cancel(request)) return;
    await sleep(fullJitter(tries, 100, 1000), stopping);
  }
}
