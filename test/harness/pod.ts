import { fileURLToPath } from 'node:url';
import { Child, type Exit } from './child.js';
import { freePort } from './free-port.js';
import { eventually } from './poll.js';
import { TEST_JWT_SECRET } from './token.js';

/** An unbound key of every pod that the harness starts: all tenants. */
export const TEST_API_KEY = 'the-test-api-key-of-the-harness-0123456789';

export interface PodOptions {
  readonly redisUrl: string;
  /** `HOLDFAST_POD` */
  readonly name: string;
  /** Over the harness's own settings; `undefined` unsets one. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** After `serve`. */
  readonly args?: readonly string[];
}

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const MAIN = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));
/** A start costs 1.4 s of CPU, and several start at once on a busy machine. */
const READY_MS = 45_000;

/** What a developer's shell may hold and a test must not see. */
const OURS = /^(HOLDFAST_|PORT$|OPS_PORT$|REDIS_URL$|DATABASE_URL$|SOCKET_PATH$|LOG_LEVEL$)/;

/** A `holdfast serve` process, which keeps its name and both ports over kills and starts. */
export class Pod implements AsyncDisposable {
  readonly name: string;
  readonly port: number;
  readonly opsPort: number;
  readonly url: string;
  readonly opsUrl: string;
  readonly #options: PodOptions;
  #child: Child;

  constructor(port: number, opsPort: number, options: PodOptions) {
    this.name = options.name;
    this.port = port;
    this.opsPort = opsPort;
    this.url = `http://127.0.0.1:${port}`;
    this.opsUrl = `http://127.0.0.1:${opsPort}`;
    this.#options = options;
    this.#child = this.#spawn();
  }

  get pid(): number {
    return this.#child.pid;
  }

  /** Of the newest run. */
  get exit(): Promise<Exit> {
    return this.#child.exit;
  }

  get isRunning(): boolean {
    return this.#child.isRunning;
  }

  /** stdout and stderr of the newest run, line by line. */
  get logs(): readonly string[] {
    return this.#child.lines;
  }

  /** Resolves when readiness answers 200; rejects with the last output when the process ends first, or after 45 s. */
  async ready(withinMs = READY_MS): Promise<void> {
    const child = this.#child;
    const what = `pod ${this.name} to be ready`;
    await eventually(async () => !child.isRunning || (await isReady(this.opsUrl)), { withinMs, what }).catch(
      (error) => {
        throw new Error(`${(error as Error).message}\n${child.tail()}`, { cause: error });
      },
    );
    if (child.isRunning) return;
    const { code, signal } = await child.exit;
    throw new Error(`pod ${this.name} ended (${signal ?? code}) before it was ready:\n${child.tail()}`);
  }

  /** Again, after an exit: same name, same ports. */
  async start(): Promise<void> {
    if (!this.#child.isRunning) this.#child = this.#spawn();
    await this.ready();
  }

  /** Asks for a drain; resolves at the exit. */
  sigterm(): Promise<Exit> {
    this.#child.signal('SIGTERM');
    return this.#child.exit;
  }

  sigkill(): Promise<Exit> {
    return this.#child.kill();
  }

  pause(): void {
    this.#child.signal('SIGSTOP');
  }

  resume(): void {
    this.#child.signal('SIGCONT');
  }

  /** The series of `/metrics` → value. A series is its text, `name{label="value"}`. */
  async metrics(): Promise<Map<string, number>> {
    const response = await fetch(`${this.opsUrl}/metrics`, { signal: AbortSignal.timeout(5000) });
    if (!response.ok) throw new Error(`${this.opsUrl}/metrics answered ${response.status}`);
    return parseMetrics(await response.text());
  }

  /** At once, by SIGKILL: who wants to see a clean exit awaits `sigterm()` before. */
  async stop(): Promise<void> {
    await this.#child.kill();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  #spawn(): Child {
    const { redisUrl, name, env = {}, args = [] } = this.#options;
    const inherited = Object.entries(process.env).filter(([key]) => !OURS.test(key));
    return new Child(process.execPath, {
      args: [MAIN, 'serve', ...args],
      cwd: ROOT,
      env: {
        ...Object.fromEntries(inherited),
        PORT: String(this.port),
        OPS_PORT: String(this.opsPort),
        HOLDFAST_HOST: '127.0.0.1',
        HOLDFAST_OPS_HOST: '127.0.0.1',
        REDIS_URL: redisUrl,
        HOLDFAST_POD: name,
        HOLDFAST_JWT_SECRET: TEST_JWT_SECRET,
        HOLDFAST_API_KEYS: TEST_API_KEY,
        ...env,
      },
    });
  }
}

/** Spawns a pod without waiting for it: for tests of a boot that fails or takes long. */
export async function spawnPod(options: PodOptions): Promise<Pod> {
  return new Pod(await freePort(), await freePort(), options);
}

/**
 * A start is work for a whole core: more at once than there are cores would only make each of them late, and what is timed
 * beside them.
 */
const STARTS_AT_ONCE = 2;
const waiting: (() => void)[] = [];
let starts = 0;

/** A pod that is ready. Needs `npm run build` before. */
export async function startPod(options: PodOptions): Promise<Pod> {
  if (starts < STARTS_AT_ONCE) starts++;
  else await new Promise<void>((resolve) => waiting.push(resolve));
  try {
    return await startInTurn(options);
  } finally {
    const next = waiting.shift();
    if (next) next();
    else starts--;
  }
}

async function startInTurn(options: PodOptions): Promise<Pod> {
  const pod = await spawnPod(options);
  try {
    await pod.ready();
  } catch (error) {
    await pod.stop();
    throw error;
  }
  return pod;
}

/** Prometheus' text format: series → value. */
export function parseMetrics(text: string): Map<string, number> {
  const series = new Map<string, number>();
  for (const line of text.split('\n')) {
    const match = /^([A-Za-z_:][\w:]*(?:\{.*\})?)\s+(\S+)/.exec(line);
    if (match) series.set(match[1] as string, Number((match[2] as string).replace('Inf', 'Infinity')));
  }
  return series;
}

async function isReady(opsUrl: string): Promise<boolean> {
  const response = await fetch(`${opsUrl}/_readiness`, { signal: AbortSignal.timeout(2000) });
  await response.arrayBuffer();
  if (response.status !== 200) throw new Error(`/_readiness answered ${response.status}`);
  return true;
}
