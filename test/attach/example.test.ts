import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Child } from '../harness/child.js';
import { freePort } from '../harness/free-port.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';

const pathOf = (file: string): string => fileURLToPath(new URL(`../../examples/rpc/${file}`, import.meta.url));
const BAKES_S = 2;
/** Each order is a process. */
const SLOW_MS = 120_000;

let redis: RedisProcess;
const ports: number[] = [];
const servers: Child[] = [];
const clients: Child[] = [];

const urlOf = (index: number): string => `http://127.0.0.1:${ports[index]}`;
const hasSaid = (child: Child | undefined, line: string): boolean => child?.lines.includes(line) ?? false;

async function serve(index: number): Promise<void> {
  const env = { ...process.env, PORT: String(ports[index]), REDIS_URL: redis.url };
  servers[index] = new Child(process.execPath, { args: [pathOf('server.js')], env });
  await eventually(() => hasSaid(servers[index], urlOf(index)), { withinMs: 20_000, what: 'a server' });
}

function client(file: string, ...args: string[]): Child {
  const child = new Child(process.execPath, { args: [pathOf(file), ...args] });
  clients.push(child);
  return child;
}

const order = (cake: string, seconds: number, ...urls: string[]): Child =>
  client('order.js', cake, String(seconds), ...urls);

/** The last line of an order, which ends with it. */
async function answerOf(child: Child): Promise<string | undefined> {
  await child.exit;
  return child.lines.at(-1);
}

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  ports.push(await freePort(), await freePort());
  await Promise.all([serve(0), serve(1)]);
});

afterAll(async () => {
  for (const child of [...clients, ...servers]) await child.kill();
  await redis?.stop();
});

test("the README shows the server's part as it stands", () => {
  const [, shown = ''] = /```js\n([\s\S]*?)```/.exec(readFileSync(pathOf('README.md'), 'utf8')) ?? [];
  const [head = '', call = ''] = shown.trim().split('\n\n');
  expect(call).toMatch(/^attachRpc\(/);
  const server = readFileSync(pathOf('server.js'), 'utf8');
  for (const part of [head, call]) expect(server).toContain(`${part}\n`);
});

test(
  'an order is baked once and answered, though the server of the oven is killed, and then its own',
  async () => {
    expect(await answerOf(order('Gugelhupf', 0, urlOf(1)))).toBe('no_worker: RPC method not available');

    const oven = client('oven.js', urlOf(0), urlOf(1));
    await eventually(async () => (await answerOf(order('Punschkrapfen', 0, urlOf(1)))) === 'Punschkrapfen is done', {
      withinMs: 20_000,
      what: 'the oven to be there',
    });

    // the oven moves
    const first = order('Sachertorte', BAKES_S, urlOf(1));
    await eventually(() => hasSaid(oven, 'in the oven: Sachertorte'), { withinMs: 20_000, what: 'the first cake' });
    await servers[0]?.kill();
    const back = serve(0);
    expect(await answerOf(first)).toBe('Sachertorte is done');

    // now both are on one server, and go to the other
    await back;
    const second = order('Linzer Torte', BAKES_S, urlOf(1), urlOf(0));
    await eventually(() => hasSaid(oven, 'in the oven: Linzer Torte'), { withinMs: 20_000, what: 'the second cake' });
    await servers[1]?.kill();
    expect(await answerOf(second)).toBe('Linzer Torte is done');

    expect(oven.lines).toEqual(['Punschkrapfen', 'Sachertorte', 'Linzer Torte'].map((cake) => `in the oven: ${cake}`));
  },
  SLOW_MS,
);
