import { randomUUID } from 'node:crypto';
import { CallError } from '../core/call-error.js';
import { RelayError } from '../core/errors.js';
import { within } from '../core/sleep.js';
import type { MethodState, Outcome } from '../rpc/index.js';
import { readCall, readName } from '../rpc/index.js';
import { RpcProcess, type RpcProcessOptions } from './rpc-process.js';

/** How long a Redis that does not answer is waited for. */
const START_MS = 2000;

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
  /** Gives up, and tells the handler so. */
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
  readName('tenant', tenant);
  readName('name', name);
  const member = new RpcProcess(redis, options, 'createRpcClient');
  member.start().catch(() => {});
  return clientOf(member, tenant, `service:${name}`);
}

/** Calls through a process that takes part in them already. */
export function clientOf(member: RpcProcess, tenant: string, caller: string): RpcClient {
  const { rpc } = member;
  const close = (): Promise<void> => member.stop();
  return {
    call: async (user, method, params, { signal, ...options } = {}) => {
      signal?.throwIfAborted();
      const by = { caller, tenant, user: readName('user', user) };
      const request = readCall({ ...options, method, params }, by, () => `c-${randomUUID()}`);
      // what it takes to connect is not the call's
      await within(START_MS, member.start()).catch(() => {});
      const calling = rpc.call(request);
      const giveUp = (): void => void rpc.cancel(request);
      signal?.addEventListener('abort', giveUp, { once: true });
      try {
        return resultOf(await calling);
      } finally {
        signal?.removeEventListener('abort', giveUp);
      }
    },
    methods: async (user) => {
      if (
        !(await within(
          START_MS,
          member.start().then(() => true),
        ))
      )
        throw new RelayError('unavailable');
      return rpc.methodsOf(tenant, readName('user', user));
    },
    close,
    [Symbol.asyncDispose]: close,
  };
}

function resultOf(outcome: Outcome): unknown {
  if (outcome.ok) return outcome.result;
  const { code, error, mayHaveRun } = outcome;
  throw new CallError(code, error, { mayHaveRun });
}
