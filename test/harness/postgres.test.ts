import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { Client } from 'pg';
import { expect, test } from 'vitest';
import { within } from '../../src/core/sleep.js';
import { Child } from './child.js';
import { eventually } from './poll.js';
import { isAnyAlive, startPostgres } from './postgres.js';

const HARNESS = fileURLToPath(new URL('./postgres.ts', import.meta.url));
const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/** A run of tests that is aborted while its Postgres is paused; prints the ids of its processes. */
const RUN = `
import { readFileSync } from 'node:fs';
import { runnerImport } from 'vite';
const { module } = await runnerImport(${JSON.stringify(HARNESS)}, { configFile: false });
const postgres = await module.startPostgres();
const pids = [postgres.pid, ...readFileSync('/proc/' + postgres.pid + '/task/' + postgres.pid + '/children', 'utf8').trim().split(' ')];
await postgres.pause();
console.log('paused', ...pids);
setInterval(() => {}, 1000);
`;

test.each(['SIGKILL', 'SIGTERM'] as const)(
  'a paused Postgres does not outlive a run that ends by %s',
  { timeout: 200_000 },
  async (signal) => {
    await using run = new Child(process.execPath, { args: ['--input-type=module', '-e', RUN], cwd: ROOT });
    let pids: number[] = [];
    await eventually(
      () => {
        const line = run.lines.find((text) => text.startsWith('paused '));
        pids = line?.split(' ').slice(1).map(Number) ?? [];
        if (!run.isRunning) throw new Error(run.tail());
        return pids.length > 1;
      },
      { withinMs: 150_000, what: 'a Postgres that is paused' },
    );
    expect(await isAnyAlive(pids)).toBe(true);
    run.signal(signal);
    await run.exit;
    await eventually(async () => !(await isAnyAlive(pids)), { withinMs: 30_000, what: 'the end of every process' });
  },
);

test('a paused Postgres whose first process was killed is ended whole', async () => {
  await using postgres = await startPostgres();
  const client = new Client(postgres.url);
  const lost = once(client, 'error');
  await client.connect();
  const { rows } = await client.query('select pg_backend_pid() as pid');
  await postgres.pause();
  process.kill(postgres.pid, 'SIGKILL');
  expect(await isAnyAlive([rows[0].pid])).toBe(true);
  await postgres.kill();
  expect(await isAnyAlive([rows[0].pid])).toBe(false);
  await lost;
  await postgres.start();
  expect(await postgres.query('select 1 as one')).toEqual([{ one: 1 }]);
});

test('a Postgres that was paused goes on, with its connections', async () => {
  await using postgres = await startPostgres();
  const client = new Client(postgres.url);
  await client.connect();
  try {
    await postgres.pause();
    const asking = client.query('select 1 as one').then(({ rows }) => rows);
    expect(await within(300, asking)).toBe(undefined);
    await postgres.resume();
    expect(await asking).toEqual([{ one: 1 }]);
  } finally {
    await client.end();
  }
});
