import { cp, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { onTestFinished } from 'vitest';
import { Child } from '../harness/child.js';
import { eventually } from '../harness/poll.js';
import type { PostgresProcess } from '../harness/postgres.js';

const CHILD = fileURLToPath(new URL('./child.mjs', import.meta.url));
const OWN = fileURLToPath(new URL('../../migrations', import.meta.url));

export type Files = Readonly<Record<string, string>>;

/** A folder with the package's migrations, if wanted, and `files`. */
export async function folderOf(files: Files, { withOwn = false } = {}): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'holdfast-migrations-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  if (withOwn) await cp(OWN, folder, { recursive: true });
  for (const [name, sql] of Object.entries(files)) await writeFile(join(folder, name), sql);
  return folder;
}

export interface Start {
  readonly name: string;
  readonly child: Child;
  /** What it said at its end. */
  readonly said: Promise<{ readonly applied?: readonly string[]; readonly failed?: string }>;
}

/** A process that starts on a database, as a pod does: from `dist/`, because Node 20 runs no TypeScript. */
function startOn(url: string, folder: string, name: string): Start {
  const child = new Child(process.execPath, { args: [CHILD, 'migrate', url, folder, name] });
  const said = child.exit.then(() => JSON.parse(child.lines.at(-1) ?? '{}'));
  return { name, child, said };
}

export interface Round {
  readonly starts: number;
  readonly killed: number;
  /** How many of those that lived say that they are up. */
  readonly up: number;
  /** How many applied something. */
  readonly appliers: number;
  readonly failures: readonly (string | undefined)[];
  readonly isWhole: boolean;
}

const SLOW = { '9999_slow.sql': 'create table slow (id int); insert into slow values (1); select pg_sleep(0.7)' };

/** `starts` processes on an empty database at once; the one that migrates is killed while it does, if so told. */
export async function migrateTogether(server: PostgresProcess, starts: number, killsOne: boolean): Promise<Round> {
  const url = await server.createDatabase();
  const folder = await folderOf(SLOW, { withOwn: true });
  const pods = Array.from({ length: starts }, (_, index) => startOn(url, folder, `pod-${index}`));
  let killed: Start | undefined;
  if (killsOne) {
    await eventually(
      async () => {
        const [at] = await server.query(
          `select application_name from pg_stat_activity
           where query like '%pg_sleep(0.7)%' and state = 'active' and datname = $1`,
          [new URL(url).pathname.slice(1)],
        );
        killed = pods.find(({ name }) => name === at?.application_name);
        return killed !== undefined;
      },
      { withinMs: 30_000, what: 'somebody who migrates' },
    );
    await killed?.child.kill();
  }
  const said = await Promise.all(pods.filter((pod) => pod !== killed).map((pod) => pod.said));
  const rows = await server.query('select name from holdfast_migrations order by name', [], url);
  const names = (await readdir(folder)).sort();
  const slow = await server.query('select id from slow', [], url);
  return {
    starts,
    killed: killed ? 1 : 0,
    up: said.filter(({ applied }) => applied !== undefined).length,
    appliers: said.filter(({ applied }) => (applied?.length ?? 0) > 0).length,
    failures: said.flatMap(({ failed }) => (failed === undefined ? [] : [failed])),
    isWhole: JSON.stringify(rows.map(({ name }) => name)) === JSON.stringify(names) && slow.length === 1,
  };
}
