import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { Redis } from 'ioredis';
import { onTestFinished, type TestContext } from 'vitest';

const execute = promisify(execFile);

/** What takes a function for the end of the test: of its context where tests run beside each other. */
export type Finished = TestContext['onTestFinished'];

/** A folder that goes with the test. */
export async function temporaryFolder(finished: Finished = onTestFinished): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'holdfast-embedded-'));
  finished(() => rm(dir, { recursive: true, force: true }));
  return dir;
}

/** A client that goes with the test. */
export function clientOf(url: string, finished: Finished = onTestFinished): Redis {
  const redis = new Redis(url, { retryStrategy: () => 20, maxRetriesPerRequest: null });
  redis.on('error', () => {});
  finished(() => redis.disconnect());
  return redis;
}

/** Resolves when `isSo` holds; fails the test after `ms`. */
export async function until(ms: number, isSo: () => Promise<boolean> | boolean): Promise<void> {
  const deadline = Date.now() + ms;
  while (!(await isSo())) {
    if (Date.now() > deadline) throw new Error(`not so within ${ms} ms`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** A zombie has ended, however long its parent takes to notice. */
export async function isAlive(pid: number): Promise<boolean> {
  const { stdout } = await execute('ps', ['-o', 'stat=', '-p', String(pid)]).catch(() => ({ stdout: '' }));
  return /^[^Z]/.test(stdout.trim());
}

export async function parentOf(pid: number): Promise<number> {
  return Number((await execute('ps', ['-o', 'ppid=', '-p', String(pid)])).stdout);
}

export async function pidOf(redis: Redis): Promise<number> {
  return Number(/^process_id:(\d+)/m.exec(await redis.info('server'))?.[1]);
}
