import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { access, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const CHILD = fileURLToPath(new URL('./child.mjs', import.meta.url));

export interface Built {
  readonly dir: string;
  remove(): Promise<void>;
}

/** `src/` as JavaScript for child processes: Node 20 runs no TypeScript. */
export async function build(): Promise<Built> {
  if (process.env.HOLDFAST_DIST) return { dir: resolve(process.env.HOLDFAST_DIST), remove: async () => {} };
  const cache = join(ROOT, 'node_modules/.cache/embedded-test');
  await mkdir(cache, { recursive: true });
  const dir = await mkdtemp(join(cache, 'dist-'));
  await writeFile(join(dir, 'package.json'), '{ "type": "module" }');
  const tsc = [join(ROOT, 'node_modules/typescript/bin/tsc'), '-p', join(ROOT, 'tsconfig.build.json'), '--outDir', dir];
  // type errors elsewhere are the type check's business
  await promisify(execFile)(process.execPath, tsc).catch(() => {});
  await access(join(dir, 'embedded/index.js'));
  return { dir, remove: () => rm(dir, { recursive: true, force: true }) };
}

export interface Child {
  readonly process: ChildProcess;
  /** Its one line. */
  readonly said: { ok: boolean; url: string; name: string; message: string };
  kill(): Promise<void>;
}

export async function launch(built: Built, verb: 'lock' | 'start', dir: string): Promise<Child> {
  const child = spawn(process.execPath, [CHILD, built.dir, verb, dir], { stdio: ['pipe', 'pipe', 'inherit'] });
  const exit = once(child, 'exit');
  const [line] = (await once(createInterface(child.stdout), 'line')) as [string];
  const kill = async (): Promise<void> => {
    child.kill('SIGKILL');
    await exit;
  };
  return { process: child, said: JSON.parse(line), kill };
}
