import { Queue } from 'bullmq';
import { Redis } from 'ioredis';
import { createLog } from '../src/backend-log/index.js';
import { eventually } from '../test/harness/poll.js';
import { type RedisProcess, startRedis } from '../test/harness/redis.js';
import { cpuUs } from './cpu-time.js';
import type { Bench } from './figures.js';
import { Worker } from './worker.js';

export type GroupSideName = 'holdfast' | 'byHand' | 'bullmq';

/** A handler call per entry, per 100, or per entry in order of its key. */
export type Way = 'each' | 'batch' | 'ordered';

export interface GroupRun {
  readonly perSecond: number;
  /** µs of CPU per entry, of all members. */
  readonly membersUs: number;
  readonly redisUs: number;
}

const TOPIC = 'bench';
const AT_ONCE = 500;
const TEXT = 'x'.repeat(170);

/** One way to work through a backlog, with a Redis of its own; entries carry 200 bytes. */
export class GroupSide implements AsyncDisposable {
  #runs = 0;

  private constructor(
    readonly name: GroupSideName,
    private readonly server: RedisProcess,
  ) {}

  static async start(name: GroupSideName): Promise<GroupSide> {
    return new GroupSide(name, await startRedis({ aof: 'off' }));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.server.stop();
  }

  /** A backlog is handled by members that join at the same time, each entry once, after another one for warmth; or this throws. */
  async run(bench: Bench, count: number, members: number, way: Way = 'each'): Promise<GroupRun> {
    const settings = JSON.stringify({ name: this.name, redisUrl: this.server.url, topic: TOPIC });
    const workers = Array.from(
      { length: members },
      (_, n) => new Worker(`${this.name} ${n}`, 'group-members.mjs', [settings]),
    );
    try {
      await this.#work(workers, count, way);
      return await bench.profiled(`groups:${members}`, workers[0] as Worker, () => this.#work(workers, count, way));
    } finally {
      await Promise.all(workers.map((worker) => worker[Symbol.asyncDispose]()));
    }
  }

  async #work(workers: readonly Worker[], count: number, way: Way): Promise<GroupRun> {
    await this.#fill(count);
    const pids = [this.server.pid, ...workers.map(({ pid }) => pid)];
    const cpu = () => Promise.all(pids.map(cpuUs));
    const handledBefore = await this.#handled(workers);
    const handled = async (): Promise<number> => (await this.#handled(workers)) - handledBefore;
    const group = `group-${++this.#runs}`;
    const [before, from] = [await cpu(), performance.now()];
    await Promise.all(workers.map((worker) => worker.ask('join', { group, way })));
    await eventually(async () => (await handled()) >= count, { withinMs: 120_000 });
    const wallMs = performance.now() - from;
    // acknowledgements that are still to come count too
    await Promise.all(workers.map((worker) => worker.ask('leave')));
    const after = await cpu();
    if ((await handled()) !== count) throw new Error(`${this.name}: not each of ${count} entries was handled once`);
    const [redisUs = 0, ...memberUs] = after.map((us, i) => (us - (before[i] as number)) / count);
    return { perSecond: (count / wallMs) * 1000, membersUs: memberUs.reduce((all, us) => all + us, 0), redisUs };
  }

  async #handled(workers: readonly Worker[]): Promise<number> {
    const answers = await Promise.all(workers.map((worker) => worker.ask<{ handled: number }>('handled')));
    return answers.reduce((all, { handled }) => all + handled, 0);
  }

  async #fill(count: number): Promise<void> {
    const { url } = this.server;
    if (this.name === 'bullmq') {
      const queue = new Queue(TOPIC, { connection: { url } });
      const job = (n: number) => ({ name: 'e', data: { n, text: TEXT }, opts: { removeOnComplete: true } });
      for (let n = 0; n < count; n += AT_ONCE)
        await queue.addBulk(Array.from({ length: Math.min(AT_ONCE, count - n) }, (_, i) => job(n + i)));
      return queue.close();
    }
    const redis = new Redis(url);
    await redis.flushall();
    redis.disconnect();
    await using log = createLog(url, { topic: TOPIC, maxEntries: 10 * count });
    for (let n = 0; n < count; n += AT_ONCE)
      await Promise.all(
        Array.from({ length: Math.min(AT_ONCE, count - n) }, (_, i) =>
          log.append({ event: 'e', data: { n: n + i, text: TEXT } }),
        ),
      );
  }
}
