import { randomBytes } from 'node:crypto';
import { silentLogger } from '../../src/core/ports.js';
import { Pods } from '../../src/pods/index.js';
import { Keys } from '../../src/redis/keys.js';
import {
  type CallRequest,
  type Daemon,
  type DaemonAnswer,
  type DaemonRequest,
  DEFAULT_SETTINGS,
  type Dedupe,
  type Outcome,
  Rpc,
  type RpcSettings,
} from '../../src/rpc/index.js';
import { Counts } from '../harness/counts.js';

const PREFIX = 'hf:';

export type Handler = (request: DaemonRequest) => unknown;

/** A daemon in this process, and what it was asked. */
export class TestDaemon implements Daemon {
  readonly tenant = 'default';
  readonly requests: DaemonRequest[] = [];
  readonly givenUp: { readonly id: string; readonly reason: string }[] = [];
  readonly replaced: string[] = [];

  constructor(
    readonly user: string,
    private readonly handler: Handler = ({ params }) => params,
    readonly id = randomBytes(6).toString('hex'),
  ) {}

  deliver(request: DaemonRequest, _leftMs: number, answer: (answer: DaemonAnswer) => void): void {
    this.requests.push(request);
    Promise.resolve()
      .then(() => this.handler(request))
      .then(
        (result) => answer({ ok: true, result }),
        (error: Error) => answer({ ok: false, error: error.message }),
      );
  }

  giveUp(id: string, reason: string): void {
    this.givenUp.push({ id, reason });
  }

  onReplaced(method: string): void {
    this.replaced.push(method);
  }
}

/** One process's part in calls, in this process. */
export class Member implements AsyncDisposable {
  readonly counts = new Counts();
  readonly processId = randomBytes(9).toString('base64url');
  readonly pods: Pods;
  readonly rpc: Rpc;
  #calls = 0;

  constructor(url: string, settings: Partial<RpcSettings> = {}) {
    const keys = new Keys(PREFIX);
    const { processId } = this;
    const shared = { url, keys, pod: processId, processId, logger: silentLogger, meter: this.counts };
    this.pods = new Pods({
      ...shared,
      handOvers: [(dead) => this.rpc.buryProcess(dead)],
      onReturn: () => void this.rpc.returnToLife(),
      onLost: () => {},
    });
    this.rpc = new Rpc({ ...shared, pods: this.pods, settings: { ...DEFAULT_SETTINGS, ...settings } });
  }

  async start(): Promise<this> {
    await this.pods.start();
    await this.rpc.start();
    return this;
  }

  async serve(daemon: TestDaemon, method: string, dedupe: Dedupe = false): Promise<TestDaemon> {
    await this.rpc.register(daemon, method, dedupe);
    return daemon;
  }

  call(user: string, method: string, params?: unknown, more: Partial<CallRequest> = {}): Promise<Outcome> {
    return this.rpc.call({
      caller: 'test',
      tenant: 'default',
      user,
      method,
      params,
      id: `${this.processId}-${++this.#calls}`,
      timeoutMs: 5000,
      isIdempotent: false,
      ...more,
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.rpc.stop();
    await this.pods.stop();
  }
}

export function startMember(url: string, settings?: Partial<RpcSettings>): Promise<Member> {
  return new Member(url, settings).start();
}
