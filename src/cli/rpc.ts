import type { Command } from 'commander';
import { Redis } from 'ioredis';
import { createRpcClient, type MethodState, type RpcClient } from '../attach/index.js';
import { parseDuration } from '../core/duration.js';
import { FatalError, RelayError } from '../core/errors.js';
import { sleep } from '../core/sleep.js';
import { isName } from '../wire/names.js';
import { redisOf } from './access.js';
import { type Format, parseFormat, parseJson, printRows } from './output.js';

interface Options {
  readonly tenant: string;
  readonly output: Format;
  readonly redisUrl?: string;
}

interface CallOptions extends Options {
  readonly timeout: number;
  readonly wait?: number;
  readonly id?: string;
  readonly idempotent?: true;
}

const WATCH_MS = 500;

export function addRpc(root: Command): void {
  const rpc = root.command('rpc').description('calls of methods, and who serves them');
  shared('call <user> <method> [params]')
    .description('call a method and print its result; params are JSON, or else a text')
    .option('--timeout <duration>', 'how long the answer is waited for', duration('--timeout'), 30_000)
    .option('--wait <duration>', 'how long a worker is waited for; 0 = not at all', duration('--wait'))
    .option('--id <id>', 'the same id, method and params are the same call, and have its answer')
    .option('--idempotent', 'it may run again if its worker dies over it')
    .action(async (user: string, method: string, params: string | undefined, options: CallOptions) => {
      const { timeout: timeoutMs, wait: waitForWorkerMs, id, idempotent = false, output } = options;
      const result = await withClient(options, (client) =>
        client.call(user, method, parseJson(params), { timeoutMs, waitForWorkerMs, id, idempotent }),
      );
      const text = output === 'json' || typeof result !== 'string' ? JSON.stringify(result) : result;
      process.stdout.write(`${text}\n`);
    });
  shared('methods <user>')
    .description('what a user serves, and how much of it waits')
    .action(async (user: string, options: Options) => {
      const methods = await withClient(options, (client) => client.methods(user));
      printRows(methods.map(printable), COLUMNS, options.output);
    });
  shared('watch <user>')
    .description('print what changes of that, until it is ended')
    .action(async (user: string, options: Options) => {
      await withClient(options, (client) => watch(client, user, options.output));
    });

  function shared(usage: string): Command {
    return rpc
      .command(usage)
      .option('-t, --tenant <name>', 'tenant', 'default')
      .option('-o, --output <format>', 'text or json', parseFormat, 'text')
      .option('--redis-url <url>', 'the Redis of the relay');
  }
}

const COLUMNS = {
  method: 'METHOD',
  state: 'STATE',
  pod: 'POD',
  since: 'AWAY-SINCE',
  waiting: 'WAITING',
  active: 'ACTIVE',
};

function printable({ since, ...rest }: MethodState): Readonly<Record<string, unknown>> {
  return { ...rest, ...(since !== undefined && { since: new Date(since).toISOString() }) };
}

async function withClient<T>({ tenant, redisUrl }: Options, work: (client: RpcClient) => Promise<T>): Promise<T> {
  if (!isName(tenant)) throw new FatalError('tenant: wants 1 to 200 characters without control characters');
  const { url, config } = await redisOf(redisUrl);
  // it says where Redis is, and is never connected
  const place = new Redis(url, { lazyConnect: true });
  await using client = createRpcClient(place, {
    tenant,
    name: 'cli',
    prefix: config.keyPrefix,
    graceMs: config.rpcGraceMs,
    absentGraceMs: config.rpcAbsentGraceMs,
    maxQueued: config.rpcMaxQueued,
    inFlight: config.rpcInFlight,
    maxPayloadBytes: config.rpcMaxPayloadBytes,
    stockMethods: config.rpcStockMethods,
  });
  try {
    return await work(client);
  } catch (error) {
    if (error instanceof RelayError && error.code === 'unavailable')
      throw new RelayError('unavailable', `Redis at ${new URL(url).host} cannot be reached`, { cause: error });
    throw error;
  }
}

/** A line for each method that comes, goes, moves, or whose queue changes. */
async function watch(client: RpcClient, user: string, output: Format): Promise<void> {
  let before = new Map<string, string>();
  for (;;) {
    const now = new Map<string, string>();
    for (const state of await client.methods(user)) {
      const row = printable(state);
      const line =
        output === 'json'
          ? JSON.stringify(row)
          : [row.method, row.state, row.pod ?? row.since, `waiting ${row.waiting}`, `active ${row.active}`].join('  ');
      now.set(state.method, line);
    }
    const at = new Date().toISOString();
    for (const [method, line] of now) if (before.get(method) !== line) print(at, line, output);
    for (const method of before.keys())
      if (!now.has(method))
        print(at, output === 'json' ? JSON.stringify({ method, state: 'gone' }) : `${method}  gone`, output);
    before = now;
    await sleep(WATCH_MS);
  }
}

function print(at: string, line: string, output: Format): void {
  process.stdout.write(output === 'json' ? `${line}\n` : `${at}  ${line}\n`);
}

function duration(flag: string): (value: string) => number {
  return (value) => {
    const ms = parseDuration(value);
    if (ms !== undefined) return ms;
    throw new FatalError(`${flag}: wants a duration such as 1500, 30s or 5m, got ${JSON.stringify(value)}`);
  };
}
