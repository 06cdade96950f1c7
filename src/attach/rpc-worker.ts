import { randomBytes } from 'node:crypto';
import { RelayError } from '../core/errors.js';
import { silentLogger } from '../core/ports.js';
import type { Daemon, DaemonAnswer, DaemonRequest, Dedupe, Rpc } from '../rpc/index.js';
import { nameOption } from './name-option.js';
import { RpcProcess, type RpcProcessOptions } from './rpc-process.js';

/** What a handler is told of the call that it runs. */
export interface IncomingCall {
  /** The same each time that this call is delivered. */
  readonly id: string;
  readonly method: string;
  /** When nobody waits for it any more, ms since 1970 by Redis's clock. */
  readonly deadline: number;
  /** 1, and more if a worker died over it. */
  readonly attempt: number;
  /** Aborts when nobody waits for it any more. */
  readonly signal: AbortSignal;
}

/** What it returns is the result; what it throws is the caller's `handler_error`, with its message. */
// biome-ignore lint/suspicious/noExplicitAny: what params are is between caller and handler
export type WorkerHandler = (params: any, call: IncomingCall) => unknown;

export interface RpcWorkerOptions extends RpcProcessOptions {
  /** Whose methods these are: a user, or the name of a service. */
  readonly user: string;
  /** Default `default`. */
  readonly tenant?: string;
  readonly methods: Readonly<Record<string, WorkerHandler>>;
  /**
   * `true`: a handler remembers what it ran beyond the death of its process, so a call may come again. Default: a call that was
   * begun when this process died is `worker_lost` at its caller, unless that says that it is idempotent.
   */
  readonly dedupe?: true;
  /** How long `close` waits for what is in work, in ms. Default 10,000. */
  readonly drainMs?: number;
  /** Another worker has registered the method since. */
  readonly onReplaced?: (method: string) => void;
}

export interface RpcWorker extends AsyncDisposable {
  /** Resolves when calls come here. */
  readonly ready: Promise<void>;
  /** Takes no more calls, waits for those in work, and leaves: new ones are `no_worker`. Idempotent. */
  close(): Promise<void>;
}

/**
 * Serves methods from a process of the cluster, without a socket. The newest registration of a method has it.
 *
 * @param redis an ioredis or node-redis client: it says where Redis is, and its own connection is not used
 * @throws {TypeError} in one line
 */
export function createRpcWorker(redis: unknown, options: RpcWorkerOptions): RpcWorker {
  const { tenant = 'default', user, methods, dedupe, drainMs = 10_000, onReplaced } = options;
  nameOption('createRpcWorker', 'tenant', tenant);
  nameOption('createRpcWorker', 'user', user);
  if (typeof methods !== 'object' || methods === null)
    throw new TypeError('createRpcWorker: methods: wants an object of functions');
  const names = Object.keys(methods);
  for (const name of names) {
    nameOption('createRpcWorker', 'methods', name);
    if (typeof methods[name] !== 'function') throw new TypeError(`createRpcWorker: methods.${name}: wants a function`);
  }
  const member = new RpcProcess(redis, options, 'createRpcWorker');
  const { logger = silentLogger } = options;
  const complain = (error: unknown): void =>
    logger.error({ event: 'rpc_worker_error', err: error }, 'a call could not be answered');
  const worker = new Worker(tenant, user, methods, onReplaced ?? (() => {}), complain);
  const ready = member.start().then(() => register(member.rpc, worker, names, dedupe ?? worker.id));
  // whoever waits for it hears it
  ready.catch(() => {});
  let closing: Promise<void> | undefined;
  const close = (): Promise<void> => {
    closing ??= (async () => {
      await member.rpc.retire(worker, performance.now() + drainMs, { isFinal: true, waitsForAll: true });
      await member.stop();
    })();
    return closing;
  };
  return { ready, close, [Symbol.asyncDispose]: close };
}

async function register(rpc: Rpc, worker: Worker, names: readonly string[], dedupe: Dedupe): Promise<void> {
  const outcomes = await Promise.all(names.map((name) => rpc.register(worker, name, dedupe)));
  if (outcomes.includes('late')) throw new RelayError('unavailable', 'the methods are registered when Redis is back');
}

class Worker implements Daemon {
  readonly id = randomBytes(9).toString('base64url');
  readonly #running = new Map<string, AbortController>();

  constructor(
    readonly tenant: string,
    readonly user: string,
    private readonly methods: Readonly<Record<string, WorkerHandler>>,
    private readonly tellReplaced: (method: string) => void,
    private readonly complain: (error: unknown) => void,
  ) {}

  deliver({ params, ...call }: DaemonRequest, _leftMs: number, answer: (answer: DaemonAnswer) => void): void {
    const running = new AbortController();
    this.#running.set(call.id, running);
    // a handler that throws at once is no different
    void (async () => this.methods[call.method]?.(params, { ...call, signal: running.signal }))()
      .then(
        (result) => answer({ ok: true, result }),
        (error: unknown) => answer({ ok: false, error: textOf(error) }),
      )
      // what cannot be answered is not this process's end
      .catch((error: unknown) => this.complain(error))
      .finally(() => this.#running.delete(call.id));
  }

  giveUp(id: string, reason: 'cancelled' | 'timeout'): void {
    this.#running.get(id)?.abort(new RelayError(reason));
  }

  onReplaced(method: string): void {
    this.tellReplaced(method);
  }
}

/** Anything can be thrown: what has no text, too. */
function textOf(error: unknown): string {
  try {
    const text: unknown = error instanceof Error ? error.message : String(error);
    return typeof text === 'string' && text !== '' ? text : 'the handler failed';
  } catch {
    return 'the handler failed';
  }
}
