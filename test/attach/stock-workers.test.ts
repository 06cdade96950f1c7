import { type Job, Queue, Worker } from 'bullmq';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createRpcClient, createRpcWorker, type RpcClient } from '../../src/attach/index.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';

let redis: RedisProcess;
let shared: Redis;
let client: RpcClient;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  shared = new Redis(redis.url, { maxRetriesPerRequest: null });
  client = createRpcClient(shared, { stockMethods: ['default/media/*'] });
});

afterAll(async () => {
  await client?.close();
  shared?.disconnect();
  await redis?.[Symbol.asyncDispose]();
});

const prefix = (user: string): string => `hf:rpc:{default/${user}}`;

function stockWorker(name: string, handler: (job: Job) => Promise<unknown>, options = {}): Worker & AsyncDisposable {
  const connection = { host: '127.0.0.1', port: redis.port };
  const worker = new Worker(name, handler, { connection, prefix: prefix('media'), ...options });
  worker.on('error', () => {});
  return Object.assign(worker, { [Symbol.asyncDispose]: () => worker.close(true) });
}

describe('a stock BullMQ Worker that knows nothing of us', () => {
  it('serves a method: the job is the params, what it returns is the result, what it throws is the failure', async () => {
    await using worker = stockWorker('resize', async ({ data }) => {
      if (data.width < 0) throw new Error('too narrow');
      return { ...data, done: true };
    });
    await worker.waitUntilReady();
    expect(await client.call('media', 'resize', { width: 3 })).toEqual({ width: 3, done: true });
    await expect(client.call('media', 'resize', { width: -1 })).rejects.toMatchObject({
      code: 'handler_error',
      message: 'too narrow',
      mayHaveRun: true,
    });
    const many = await Promise.all(
      Array.from({ length: 200 }, (_, width) => client.call('media', 'resize', { width })),
    );
    expect(many).toEqual(Array.from({ length: 200 }, (_, width) => ({ width, done: true })));
  });

  it('answers a call that is made again by its id, and once', async () => {
    let runs = 0;
    await using worker = stockWorker('once', async () => ++runs);
    await worker.waitUntilReady();
    const call = () => client.call('media', 'once', null, { id: 'the-one' });
    expect(await Promise.all([call(), call()])).toEqual([1, 1]);
    expect(await call()).toBe(1);
    await using other = createRpcClient(shared, { stockMethods: ['default/media/*'] });
    expect(await other.call('media', 'once', null, { id: 'the-one' })).toBe(1);
  });

  it('that is not there is known at once', async () => {
    const startedAt = performance.now();
    await expect(client.call('media', 'nobody')).rejects.toMatchObject({ code: 'no_worker', mayHaveRun: false });
    expect(performance.now() - startedAt).toBeLessThan(1000);
    expect(await shared.keys(`${prefix('media')}:nobody:*`)).toEqual([]);
  });

  it('never begins what its caller gave up', async () => {
    let runs = 0;
    const call = client.call('media', 'late', null, { timeoutMs: 300, waitForWorkerMs: 1000 });
    await expect(call).rejects.toMatchObject({ code: 'timeout', mayHaveRun: false });
    await using worker = stockWorker('late', async () => ++runs);
    await worker.waitUntilReady();
    expect(await client.call('media', 'late', 'now', { waitForWorkerMs: 1000 })).toBe(1);
    expect(runs).toBe(1);
  });
});

describe('stock BullMQ tools', () => {
  it('see calls of our own workers as jobs', async () => {
    const queue = new Queue('work', { connection: { host: '127.0.0.1', port: redis.port }, prefix: prefix('ours') });
    let finish: () => void = () => {};
    await using worker = createRpcWorker(shared, {
      user: 'ours',
      methods: {
        work: (params) =>
          params === 'fail'
            ? Promise.reject(new Error('no'))
            : new Promise<string>((resolve) => {
                finish = () => resolve('done');
              }),
      },
    });
    await worker.ready;
    const calling = client.call('ours', 'work', { a: 1 });
    await eventually(async () => expect(await queue.getJobCounts()).toMatchObject({ active: 1, waiting: 0 }));
    const [job] = await queue.getActive();
    expect(job).toMatchObject({ name: 'work', data: { a: 1 }, attemptsStarted: 1 });
    expect(await job?.getState()).toBe('active');
    finish();
    expect(await calling).toBe('done');
    expect(await queue.getJob(job?.id ?? '')).toMatchObject({ returnvalue: 'done', finishedOn: expect.any(Number) });
    expect(await job?.getState()).toBe('completed');
    await expect(client.call('ours', 'work', 'fail')).rejects.toMatchObject({ message: 'no' });
    const [failed] = await queue.getFailed();
    expect(failed).toMatchObject({ failedReason: 'no', data: 'fail' });
    await queue.close();
  });
});
