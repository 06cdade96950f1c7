import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises';
import { basename, delimiter, dirname, join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { FatalError } from '../core/errors.js';
import { errnoOf, isThere } from './private-file.js';

/** Unpacked packages, and what a program in `usr/bin` or `usr/sbin` below `root` needs to run. */
export interface AptTree {
  readonly root: string;
  readonly env: Readonly<Record<'LD_LIBRARY_PATH' | 'PATH', string>>;
}

/** Of one step: a mirror that hangs must not hang the start for ever. */
const STEP_MS = 180_000;

const execute = promisify(execFile);

/**
 * Debian packages without root and without installing them: apt works on its own lists and cache, the packages are
 * unpacked in `dir`, and no system service starts. A `dir` that exists is used as it is.
 *
 * Name every package that holds a wanted file: a dependency that the system already has is not fetched again.
 * Atomic: the tree is built beside `dir` and renamed, so callers that race all succeed, with the tree of one of them.
 *
 * @throws {FatalError} one line with what apt said
 */
export async function fetchFromApt(packages: string[], dir: string): Promise<AptTree> {
  const root = resolve(dir);
  if (!(await isThere(root))) await build(packages, root);
  return { root, env: await environmentOf(root) };
}

async function build(packages: readonly string[], root: string): Promise<void> {
  await mkdir(dirname(root), { recursive: true });
  const draft = await mkdtemp(join(dirname(root), `.${basename(root)}-`));
  try {
    const tree = join(draft, 'root');
    for (const folder of ['lists/partial', 'archives/partial', 'root'])
      await mkdir(join(draft, folder), { recursive: true });
    await apt(draft, 'update');
    // reinstall: a system that has the package would fetch nothing
    await apt(draft, 'install', '--reinstall', '--download-only', '--no-install-recommends', '-y', ...packages);
    for (const file of await readdir(join(draft, 'archives')))
      if (file.endsWith('.deb')) await run('dpkg-deb', ['-x', join(draft, 'archives', file), tree]);
    await rename(tree, root).catch((error: unknown) => {
      // somebody else was first
      if (errnoOf(error) !== 'ENOTEMPTY' && errnoOf(error) !== 'EEXIST') throw error;
    });
  } finally {
    await rm(draft, { recursive: true, force: true });
  }
}

function apt(draft: string, ...args: string[]): Promise<void> {
  const settings = [
    `Dir::State::lists=${draft}/lists`,
    `Dir::Cache=${draft}`,
    `Dir::Cache::archives=${draft}/archives`,
    'Debug::NoLocking=1',
    'APT::Sandbox::User=',
    'Acquire::Languages=none',
    'Acquire::GzipIndexes=true',
  ];
  return run('apt-get', ['-qq', ...settings.flatMap((setting) => ['-o', setting]), ...args]);
}

async function run(command: string, args: string[]): Promise<void> {
  try {
    await execute(command, args, { timeout: STEP_MS, maxBuffer: 2 ** 24 });
  } catch (error) {
    throw new FatalError(`${command}: ${reasonOf(error)}`, { cause: error });
  }
}

function reasonOf(error: unknown): string {
  if (errnoOf(error) === 'ENOENT') return 'not found, this is no Debian or Ubuntu';
  const { stderr = '', killed = false } = error as { stderr?: string; killed?: boolean };
  if (killed) return `gave up after ${STEP_MS / 1000} s`;
  // the first complaint names the cause, later ones follow from it
  const complaint = stderr.split('\n').find((line) => line.startsWith('E:')) ?? stderr.trim().split('\n').at(-1);
  return complaint?.replace(/^E:\s*/, '').trim() || 'failed';
}

async function environmentOf(root: string): Promise<AptTree['env']> {
  const libraries: string[] = [];
  for (const folder of [join(root, 'usr/lib'), join(root, 'lib')]) {
    const names = await readdir(folder).catch(() => []);
    // Debian keeps libraries in a folder per architecture, such as x86_64-linux-gnu
    libraries.push(...names.filter((name) => name.includes('-linux-')).map((name) => join(folder, name)), folder);
  }
  const programs = ['usr/bin', 'usr/sbin'].map((folder) => join(root, folder));
  return {
    LD_LIBRARY_PATH: libraries.join(delimiter),
    PATH: [...programs, process.env.PATH ?? ''].join(delimiter),
  };
}
