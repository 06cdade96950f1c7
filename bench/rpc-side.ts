import { Redis } from 'ioredis';
import { cpuSeconds } from '../test/harness/cpu.js';
import { eventually } from '../test/harness/poll.js';
import { type RedisProcess, startRedis } from '../test/harness/redis.js';
import { ALL_CAPS, token } from '../test/harness/token.js';
import { Monitor } from './monitor.js';
import { relaySettings } from './side.js';
import { Worker } from './worker.js';

export type CallSideName = 'holdfast' | 'bullmq' | 'emitWithAck' | 'fetchSockets';

/** Between two processes of a back end, or between two clients on two pods. */
export type Level = 'library' | 'sockets';

export interface Calls {
  readonly count: number;
  /** Each with one call at a time, and at the level of sockets with a socket of its own. */
  readonly callers: number;
}

/** What some calls took; µs of CPU are per call. */
export interface CallRun {
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly perSecond: number;
  readonly callingUs: number;
  readonly servingUs: number;
  readonly redisUs: number;
}

const MAX_CALLERS = 50;
const DAEMON = 'daemon';

const QUIET_MS = 200;
/** Of CPU in that time; the kernel counts in steps of 10 ms. */
const QUIET_S = 0.011;

/** What a benchmark asks of one socket in a second is not what the relay lets a client do. */
const LIMITS = {
  HOLDFAST_GATEWAY_MESSAGES_PER_SECOND: '1000000',
};

/** The processes of one contestant beside its Redis. At the level of libraries who is measured is also who calls, and who serves. */
interface Processes {
  readonly calling: Worker;
  readonly serving: Worker;
  readonly callers: Worker;
  readonly handler: Worker;
}

/** One way to call, with a Redis of its own. */
export class CallSide implements AsyncDisposable {
  readonly #redis: Redis;

  private constructor(
    readonly name: CallSideName,
    readonly level: Level,
    private readonly server: RedisProcess,
    readonly processes: Processes,
  ) {
    this.#redis = new Redis(server.url);
  }

  static async start(name: CallSideName, level: Level): Promise<CallSide> {
    const server = await startRedis({ aof: 'off' });
    const start = level === 'library' ? startLibrary : startSockets;
    const side = new CallSide(name, level, server, await start(name, server.url));
    await eventually(() => side.#call({ count: 1, callers: 1 }).then(() => {}), {
      // BullMQ's QueueEvents may miss what ends before its first read; that call fails at its time-out
      withinMs: 30_000,
      what: `${name}: the first call`,
    });
    return side;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#redis.disconnect();
    const processes = new Set<Worker>(Object.values(this.processes));
    await Promise.all([...processes].map((process) => process[Symbol.asyncDispose]()));
    await this.server.stop();
  }

  /** Every call is answered, with its own result, and ran once; or this throws. */
  async run(calls: Calls): Promise<CallRun> {
    const executionsBefore = await this.executions();
    await this.quiet();
    const before = await this.#cpu();
    const { wallUs, p50, p99 } = await this.#call(calls);
    // what is left to do after the last answer counts too
    await this.quiet();
    const after = await this.#cpu();
    const executions = (await this.executions()) - executionsBefore;
    if (executions !== calls.count) throw new Error(`${this.name}: ${calls.count} calls ran ${executions} times`);
    const perCall = (i: number) => (((after[i] as number) - (before[i] as number)) / calls.count) * 1e6;
    return {
      p50Ms: p50 / 1000,
      p99Ms: p99 / 1000,
      perSecond: calls.count / (wallUs / 1e6),
      callingUs: perCall(0),
      servingUs: perCall(1),
      redisUs: perCall(2),
    };
  }

  /** Commands per call that clients sent to Redis, and that scripts ran inside it. */
  async commands(calls: Calls): Promise<{ sent: number; inside: number }> {
    let inside = 0;
    using monitor = await Monitor.start(this.server.port, (_, source) => {
      if (source === 'lua') inside++;
      return source.includes(':');
    });
    await this.#call(calls);
    return { sent: (await monitor.stop()) / calls.count, inside: inside / calls.count };
  }

  private executions(): Promise<number> {
    return this.processes.handler.ask('executions');
  }

  #call(calls: Calls): Promise<{ wallUs: number; p50: number; p99: number }> {
    return this.processes.callers.ask('call', { ...calls, user: DAEMON });
  }

  #cpu(): Promise<number[]> {
    const { calling, serving } = this.processes;
    return Promise.all([calling.pid, serving.pid, this.server.pid].map(cpuSeconds));
  }

  private async quiet(): Promise<void> {
    let last = await this.#cpu();
    const isQuiet = async (): Promise<boolean> => {
      await new Promise((resolve) => setTimeout(resolve, QUIET_MS));
      const now = await this.#cpu();
      const used = Math.max(...now.map((seconds, i) => seconds - (last[i] as number)));
      last = now;
      return used < QUIET_S;
    };
    await eventually(isQuiet, { withinMs: 60_000, what: `${this.name}: its processes to be idle` });
  }
}

async function startLibrary(name: CallSideName, redisUrl: string): Promise<Processes> {
  const settings = JSON.stringify({ name, redisUrl });
  const [calling, serving] = ['caller', 'worker'].map(
    (role) => new Worker(`${name}, ${role}`, 'rpc-library.mjs', [settings], ['--expose-gc']),
  ) as [Worker, Worker];
  await serving.ask('serve');
  await calling.ask('open');
  return { calling, serving, callers: calling, handler: serving };
}

async function startSockets(name: CallSideName, redisUrl: string): Promise<Processes> {
  const isRelay = name === 'holdfast';
  const pod = async (pod: string): Promise<Worker> => {
    const settings = isRelay ? await relaySettings(redisUrl, pod, LIMITS) : { name, redisUrl };
    const file = isRelay ? 'relay.mjs' : 'rpc-pod.mjs';
    return new Worker(`${name}, pod ${pod}`, file, [JSON.stringify(settings)], ['--expose-gc']);
  };
  const client = (role: string): Worker => new Worker(`${name}, ${role}`, 'rpc-clients.mjs');
  const [calling, serving, callers, handler] = [await pod('a'), await pod('b'), client('callers'), client('daemon')];
  const [callingPort, servingPort] = await Promise.all([calling, serving].map((pod) => pod.ask<number>('listen')));
  const tokenOf = (sub: string) => (isRelay ? token({ sub, caps: ALL_CAPS }) : sub);
  await handler.ask('serve', { port: servingPort, token: await tokenOf(DAEMON) });
  await callers.ask('open', { port: callingPort, token: await tokenOf('caller'), count: MAX_CALLERS });
  return { calling, serving, callers, handler };
}
