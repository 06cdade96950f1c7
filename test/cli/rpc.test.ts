import { createInterface } from 'node:readline';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createRpcWorker, type RpcWorker } from '../../src/attach/index.js';
import { type Client, connect } from '../harness/client.js';
import { freePort } from '../harness/free-port.js';
import { type Pod, startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { token } from '../harness/token.js';
import { type Run, run as runWith, start } from './run.js';
import { runHere } from './run-here.js';

let redis: RedisProcess;
let shared: Redis;
let pod: Pod;
let daemon: Client;
let worker: RpcWorker;
let runs = 0;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  shared = new Redis(redis.url);
  worker = createRpcWorker(shared, {
    user: 'billing',
    methods: {
      add: ({ a, b }) => a + b,
      greet: (name) => `hello ${name}`,
      refuse: () => {
        throw new Error('not today');
      },
      count: () => ++runs,
      hang: () => new Promise(() => {}),
    },
    drainMs: 0,
  });
  pod = await startPod({ redisUrl: redis.url, name: 'pod-a' });
  await worker.ready;
  daemon = await connect(pod.url, { token: await token({ sub: 'oven' }) });
  daemon.socket.on('rpc-request', ({ params }, answer) => answer({ baked: params }));
  expect(await daemon.socket.emitWithAck('rpc-register', { method: 'bake' })).toEqual({ ok: true });
});
afterAll(async () => {
  await daemon?.stop();
  await worker?.close();
  shared?.disconnect();
  await pod?.stop();
  await redis?.stop();
});

/** By a process of its own: each command at least once, and what takes its time. */
const run = (...args: string[]): Promise<Run> => runWith(['rpc', ...args], { REDIS_URL: redis.url });
const here = (...args: string[]): Promise<Run> => runHere(['rpc', ...args], { REDIS_URL: redis.url });

describe.concurrent('call', () => {
  it('prints the result: of a client of a pod, or of a worker', async () => {
    expect(await run('call', 'oven', 'bake', '["bread"]')).toMatchObject({
      code: 0,
      out: '{"baked":["bread"]}\n',
      err: '',
    });
    expect(await here('call', 'billing', 'add', '{"a":1,"b":2}')).toMatchObject({ code: 0, out: '3\n', err: '' });
  });

  it('takes params that are no JSON as a text, and prints a text as it is, unless JSON is asked for', async () => {
    expect(await here('call', 'billing', 'greet', 'Ada')).toMatchObject({ code: 0, out: 'hello Ada\n' });
    expect((await here('call', 'billing', 'greet', 'Ada', '-o', 'json')).out).toBe('"hello Ada"\n');
  });

  it('with the same id is the same call', async () => {
    const counted = (): Promise<Run> => here('call', 'billing', 'count', '--id', 'the-one');
    expect([(await counted()).out, (await counted()).out]).toEqual(['1\n', '1\n']);
  });

  it.each([
    ['a handler that fails', ['refuse'], 'not today'],
    ['a method that nobody serves', ['nothing'], 'RPC method not available'],
    ['a handler that takes too long', ['hang', '--timeout', '1s'], 'operation has timed out'],
    ['a tenant that is none', ['add', '-t', ''], 'tenant: wants 1 to 200 characters without control characters'],
    [
      'a duration that is none',
      ['add', '--wait', 'long'],
      '--wait: wants a duration such as 1500, 30s or 5m, got "long"',
    ],
  ])('of %s is one line and exit code 1', async (_, [method = '', ...options], text) => {
    expect(await here('call', 'billing', method, ...options)).toMatchObject({
      code: 1,
      out: '',
      err: `holdfast: ${text}\n`,
    });
  });

  it('without a Redis has exit code 2', async () => {
    const place = `127.0.0.1:${await freePort()}`;
    expect(await run('call', 'billing', 'add', '--redis-url', `redis://${place}`)).toMatchObject({
      code: 2,
      out: '',
      err: `holdfast: Redis at ${place} cannot be reached\n`,
    });
  });
});

describe.concurrent('methods', () => {
  it('stand in columns, with who serves them', async () => {
    const { code, out, err } = await run('methods', 'oven');
    expect({ code, err }).toEqual({ code: 0, err: '' });
    expect(out).toBe(
      ['METHOD  STATE  POD    AWAY-SINCE  WAITING  ACTIVE', 'bake    live   pod-a  -           0        0', ''].join(
        '\n',
      ),
    );
  });

  it('are one array as JSON', async () => {
    expect(JSON.parse((await here('methods', 'oven', '-o', 'json')).out)).toEqual([
      { method: 'bake', state: 'live', pod: 'pod-a', waiting: 0, active: 0 },
    ]);
    expect(JSON.parse((await here('methods', 'nobody', '-o', 'json')).out)).toEqual([]);
  });
});

it.concurrent.each(['text', 'json'])('watch prints what comes, works and goes, as %s', async (format) => {
  const user = `visitor-${format}`;
  const child = start(['rpc', 'watch', user, '-o', format], { REDIS_URL: redis.url });
  try {
    const lines: string[] = [];
    createInterface({ input: child.stdout! }).on('line', (line) => lines.push(line.replace(/^\d{4}-\S+Z {2}/, '')));
    await using visitor = createRpcWorker(shared, {
      user,
      methods: { look: () => new Promise(() => {}) },
      drainMs: 0,
    });
    await visitor.ready;
    const said = (text: string, json: object): Promise<void> =>
      eventually(
        () => {
          const last = lines.at(-1) ?? '';
          if (format === 'json') expect(JSON.parse(last)).toMatchObject(json);
          else expect(last).toMatch(new RegExp(`^look {2}${text}$`));
        },
        { withinMs: 20_000, what: text },
      );
    await said('live {2}\\S+ {2}waiting 0 {2}active 0', { method: 'look', state: 'live', waiting: 0, active: 0 });
    const calling = run('call', user, 'look', '--timeout', '20s');
    await said('live {2}\\S+ {2}waiting 0 {2}active 1', { method: 'look', state: 'live', active: 1 });
    await visitor.close();
    expect(await calling).toMatchObject({ code: 1, err: 'holdfast: RPC target disconnected\n' });
    await said('gone', { method: 'look', state: 'gone' });
  } finally {
    child.kill('SIGKILL');
  }
});
