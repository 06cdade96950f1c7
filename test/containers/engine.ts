import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { hostname } from 'node:os';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { IMAGE } from './image.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const ANSWER_MS = 15_000;
const BUILD_MS = 10 * 60_000;

const execute = promisify(execFile);

interface Engine {
  readonly version: string;
  readonly system: string;
  /** Host name of the machine that it runs on. */
  readonly machine: string;
}

/** Vitest's global setup: an engine that answers and the relay's image, or an end in one line. Never a skip. */
export async function setup(): Promise<void> {
  const { version, system, machine } = await engine();
  console.log(`Docker engine ${version} on ${machine} (${system})`);
  // where /.dockerenv exists testcontainers looks for published ports on the bridge; an engine beside us has them here
  if (process.env.DOCKER_HOST === undefined && existsSync('/.dockerenv') && machine === hostname())
    process.env.TESTCONTAINERS_HOST_OVERRIDE ??= '127.0.0.1';
  await buildImage();
}

/** The script is run also where an engine answers: it knows which images may be missing. */
async function engine(): Promise<Engine> {
  const script = process.env.HOLDFAST_TEST_ENGINE;
  if (script) await run(script);
  return await ask().catch((error) =>
    refuse(`no Docker engine answers${script ? `, even after ${script}` : ''}: ${lastLine(error)}`),
  );
}

/** @throws what `docker` says when nothing answers */
async function ask(): Promise<Engine> {
  const docker = async (...args: string[]): Promise<string> =>
    (await execute('docker', args, { timeout: ANSWER_MS })).stdout.trim();
  const version = await docker('version', '--format', '{{.Server.Version}}');
  const [machine = '', system = ''] = (await docker('info', '--format', '{{.Name}}|{{.OperatingSystem}}')).split('|');
  return { version, system, machine };
}

/** Its output is shown: it may take a minute. */
async function run(script: string): Promise<void> {
  console.log(`HOLDFAST_TEST_ENGINE makes an engine and images ready: ${script}`);
  const child = spawn(script, { stdio: ['ignore', 'inherit', 'inherit'] });
  const [code] = await once(child, 'exit').catch((error: Error) => [error.message]);
  if (code !== 0) refuse(`HOLDFAST_TEST_ENGINE failed (${code}): ${script}`);
}

async function buildImage(): Promise<void> {
  const startedAt = performance.now();
  await execute('docker', ['build', '--tag', IMAGE, ROOT], { timeout: BUILD_MS, maxBuffer: 2 ** 26 }).catch((error) => {
    const { stdout, stderr } = error as { stdout: string; stderr: string };
    process.stderr.write(`${stdout}\n${stderr}\n`);
    refuse(`docker build of ${IMAGE} failed; its output is above`);
  });
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(1);
  const { stdout } = await execute('docker', ['image', 'inspect', '--format', '{{.Size}}', IMAGE]);
  console.log(`${IMAGE}: ${Math.round(Number(stdout) / 1e6)} MB, built in ${seconds} s`);
}

/** One line, and the end: around an error thrown here vitest would say that there are no test files. */
function refuse(message: string): never {
  process.stderr.write(`${message}\n`);
  process.exit(1);
}

function lastLine(error: unknown): string {
  const { code, message, stderr = '' } = error as NodeJS.ErrnoException & { stderr?: string };
  if (code === 'ENOENT') return 'docker is not installed';
  return (stderr.trim() || message).split('\n').at(-1) as string;
}
