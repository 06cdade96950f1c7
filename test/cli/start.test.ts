import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { expect, it, type TestContext } from 'vitest';
import { freePort } from '../harness/free-port.js';
import { copyTo } from '../harness/pglite.js';
import { eventually } from '../harness/poll.js';
import { cleanEnv, run } from './run.js';

type Finished = TestContext['onTestFinished'];

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

interface Started {
  readonly process: ChildProcess;
  /** What it printed, so far. */
  readonly printed: () => string;
  readonly exit: Promise<unknown[]>;
}

/** A folder for one relay, and its ports: what a newcomer has who types `npm start`. */
async function home(finished: Finished): Promise<Record<'HOLDFAST_DATA_DIR' | 'PORT' | 'OPS_PORT', string>> {
  const dir = await mkdtemp(join(tmpdir(), 'holdfast-start-'));
  finished(() => rm(dir, { recursive: true, force: true, maxRetries: 20, retryDelay: 200 }));
  return {
    HOLDFAST_DATA_DIR: join(dir, '.holdfast'),
    PORT: String(await freePort()),
    OPS_PORT: String(await freePort()),
  };
}

/** Runs a program of ours as a shell does, to its last line of output. */
function launch(finished: Finished, command: string, args: readonly string[], env: Record<string, string>): Started {
  const child = spawn(command, args, { cwd: ROOT, env: cleanEnv(env), stdio: ['ignore', 'pipe', 'pipe'] });
  finished(() => void child.kill('SIGKILL'));
  let printed = '';
  for (const stream of [child.stdout, child.stderr])
    createInterface({ input: stream }).on('line', (line) => {
      printed += `${line}\n`;
    });
  return { process: child, printed: () => printed, exit: once(child, 'exit') };
}

/** What `npm start` runs. */
async function start(finished: Finished, env: Record<string, string>): Promise<Started> {
  const relay = launch(finished, 'sh', ['-c', 'exec node dist/cli/main.js serve'], env);
  await eventually(
    () => {
      if (relay.process.exitCode !== null) throw new Error(`it ended: ${relay.printed()}`);
      return relay.printed().includes('Ctrl-C stops it.');
    },
    { withinMs: 60_000, what: 'the greeting' },
  );
  return relay;
}

/** The indented block that begins with `first`, as a person would paste it. */
function pasted(printed: string, first: string): string {
  const lines = printed.split('\n');
  const from = lines.findIndex((line) => line.startsWith(`  ${first}`));
  const length = lines.slice(from).findIndex((line) => !line.startsWith('  '));
  return lines
    .slice(from, from + length)
    .map((line) => line.slice(2))
    .join('\n');
}

it.concurrent('npm start: what it prints works as it stands, and a kill -9 loses nothing', {
  timeout: 120_000,
}, async ({ onTestFinished: finished }) => {
  const env = await home(finished);
  const first = await start(finished, env);
  expect(first.printed()).toMatch(
    new RegExp(
      `^Holdfast is starting its own Redis and Postgres …\n\nHoldfast \\S+ serves http://localhost:${env.PORT}   \\(probes and metrics: http://localhost:${env.OPS_PORT}/metrics\\)\n`,
    ),
  );
  expect(first.printed()).not.toContain('{"level"');

  // the client, as printed
  const program = join(ROOT, 'node_modules/.cache', `start-test-${process.pid}.mjs`);
  await mkdir(dirname(program), { recursive: true });
  await writeFile(program, pasted(first.printed(), 'import { io }'));
  finished(() => rm(program, { force: true }));
  const client = launch(finished, process.execPath, [program], {});
  await eventually(() => expect(client.printed()).toMatch(/^world /m), { withinMs: 20_000 });
  expect(client.printed()).toMatch(/^connected \{ recovered: false \}$/m);

  // curl, as printed
  const curl = launch(finished, 'sh', ['-c', pasted(first.printed(), 'curl ')], {});
  expect(await curl.exit).toEqual([0, null]);
  await eventually(() => expect(client.printed()).toMatch(/^again /m), { withinMs: 20_000 });

  // other commands find the relay by its folder
  const before = await run(['publish', 'news', 'hello', '"kept"'], env);
  expect(before).toMatchObject({ code: 0, err: '' });
  await eventually(() => expect(client.printed()).toMatch(/^kept /m), { withinMs: 20_000 });
  // and ask it for what only it can open: its database
  const device = await run(['devices', 'create', 'me', 'phone'], env);
  expect(device).toMatchObject({ code: 0, out: expect.stringMatching(/^hfd_\w+\n$/), err: '' });

  first.process.kill('SIGKILL');
  await first.exit;
  const second = await start(finished, env);
  await eventually(() => expect(client.printed()).toMatch(/^connected \{ recovered: true \}$/m), { withinMs: 30_000 });
  const after = await run(['publish', 'news', 'hello', '"more"'], env);
  expect((await run(['devices', 'list'], env)).out).toMatch(/\nme {4}phone {3}own /);
  const offset = ({ out }: { readonly out: string }): number => Number(/-(\d+)\n$/.exec(out)?.[1]);
  expect(after.out.split(':')[0]).toBe(before.out.split(':')[0]);
  expect(offset(after)).toBe(offset(before) + 1);
  await eventually(() => expect(client.printed()).toMatch(/^more /m), { withinMs: 20_000 });
  for (const word of ['world', 'again', 'kept', 'more'])
    expect(client.printed().match(new RegExp(`^${word} `, 'gm'))).toHaveLength(1);
  const tail = await run(['tail', '--from', 'earliest', '--no-follow', '-o', 'json'], env);
  const events = tail.out
    .trim()
    .split('\n')
    .map((line) => (JSON.parse(line) as { data: string }).data);
  expect(events).toEqual(['world', 'again', 'kept', 'more']);

  // on the same folder, a second one is refused
  const other = await run(['serve', '--port', '0', '--ops-port', '0'], env);
  expect(other).toMatchObject({ code: 1, out: 'Holdfast is starting its own Redis and Postgres …\n' });
  expect(other.err).toMatch(/^holdfast: \S+ is in use by process \d+: stop it, or set HOLDFAST_DATA_DIR [^\n]+\n$/);

  // nobody routes to it: it ends at once, Ctrl-C twice as npm sends it
  const stoppedAt = performance.now();
  second.process.kill('SIGINT');
  second.process.kill('SIGINT');
  expect(await second.exit).toEqual([0, null]);
  expect(performance.now() - stoppedAt).toBeLessThan(10_000);
});

it.concurrent('a folder that cannot be written is a line', async ({ onTestFinished: finished }) => {
  const dir = '/proc/holdfast';
  const { code, err, tookMs } = await run(['serve'], { ...(await home(finished)), HOLDFAST_DATA_DIR: dir });
  expect(code).toBe(1);
  expect(err).toMatch(/^holdfast: \/proc\/holdfast cannot be written \(E\w+\): set HOLDFAST_DATA_DIR [^\n]+\n$/);
  expect(tookMs).toBeLessThan(15_000);
});

it.concurrent('a relay whose greeting nobody reads to the end serves on', async ({ onTestFinished: finished }) => {
  const env = await home(finished);
  await mkdir(env.HOLDFAST_DATA_DIR, { recursive: true });
  // a first start takes long, and the test above has one
  await copyTo(env.HOLDFAST_DATA_DIR);
  const relay = launch(finished, 'sh', ['-c', 'exec node dist/cli/main.js serve'], env);
  relay.process.stdout!.destroy();
  const ready = async (): Promise<void> =>
    expect((await fetch(`http://127.0.0.1:${env.OPS_PORT}/_readiness`)).status).toBe(200);
  await eventually(ready, { withinMs: 30_000 });
  await new Promise((resolve) => setTimeout(resolve, 1000));
  await ready();
  relay.process.kill('SIGTERM');
  expect(await relay.exit).toEqual([0, null]);
});
