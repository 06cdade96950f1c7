import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';

const MAIN = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));

/** What a developer's shell may hold and a test must not see. */
const OURS = /^(HOLDFAST_|PORT$|OPS_PORT$|REDIS_URL|DATABASE_URL$|SOCKET_PATH$|LOG_LEVEL$)/;

export interface Run {
  readonly code: number | null;
  readonly out: string;
  readonly err: string;
  readonly tookMs: number;
}

export type Env = Readonly<Record<string, string | undefined>>;

/** The environment of this process without any setting of ours, and then `env`. */
export function cleanEnv(env: Env): Env {
  const inherited = Object.entries(process.env).filter(([key]) => !OURS.test(key));
  return { ...Object.fromEntries(inherited), ...env };
}

/** `holdfast <args>`, both of its outputs being pipes. */
export function start(args: readonly string[], env: Env = {}): ChildProcess {
  return spawn(process.execPath, [MAIN, ...args], { env: cleanEnv(env), stdio: ['ignore', 'pipe', 'pipe'] });
}

/** `holdfast <args>` to its end. */
export async function run(args: readonly string[], env: Env = {}): Promise<Run> {
  const startedAt = performance.now();
  const child = start(args, env);
  const [out, err, [code]] = await Promise.all([text(child.stdout!), text(child.stderr!), once(child, 'close')]);
  return { code, out, err, tookMs: performance.now() - startedAt };
}
