import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cp, mkdir, mkdtemp, readFile, rename, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { silentLogger } from '../../src/core/ports.js';
import { type EmbeddedPostgres, openPglite } from '../../src/embedded/pglite.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

const execute = promisify(execFile);

export interface Copy {
  /** The data folder, as the embedded start has it; the caller deletes it. */
  readonly folder: string;
  readonly database: EmbeddedPostgres;
}

/** An empty private Postgres in a folder of its own. */
export async function openCopy(): Promise<Copy> {
  const folder = await mkdtemp(join(tmpdir(), 'holdfast-pglite-'));
  await copyTo(folder);
  return { folder, database: await open(folder) };
}

/** Gives a data folder an empty private Postgres: made once per machine and version, which takes many seconds. */
export async function copyTo(folder: string): Promise<void> {
  const lock = await readFile(join(ROOT, 'node_modules/@electric-sql/pglite/package.json'));
  const template = join(
    ROOT,
    '.cache',
    `pglite-template-${createHash('sha256').update(lock).digest('hex').slice(0, 12)}`,
  );
  if (!(await isThere(template))) await make(template);
  await execute('cp', ['-a', template, join(folder, 'postgres')]).catch(() =>
    cp(template, join(folder, 'postgres'), { recursive: true }),
  );
}

export async function open(folder: string): Promise<EmbeddedPostgres> {
  const database = await openPglite(folder, silentLogger);
  if (!database) throw new Error('@electric-sql/pglite is not installed');
  return database;
}

async function make(template: string): Promise<void> {
  await mkdir(join(ROOT, '.cache'), { recursive: true });
  const draft = await mkdtemp(join(ROOT, '.cache/.pglite-'));
  try {
    await (await open(draft)).close();
    // somebody else may be first
    await rename(join(draft, 'postgres'), template).catch(async (error: unknown) => {
      if (!(await isThere(template))) throw error;
    });
  } finally {
    await rm(draft, { recursive: true, force: true });
  }
}

async function isThere(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}
