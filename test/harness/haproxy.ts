import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { binary } from './binaries.js';
import { Child } from './child.js';
import { freePort } from './free-port.js';
import { eventually } from './poll.js';

export interface Backend {
  readonly host: string;
  readonly port: number;
  readonly opsPort: number;
}

export interface HaproxyOptions {
  readonly backends: readonly Backend[];
  readonly balance?: 'roundrobin' | 'leastconn';
  /** How long an upgraded connection may be silent, in haproxy's notation; default `1h`. */
  readonly tunnelTimeout?: string;
  /** Cuts the connections of a backend whose check fails; default off, as haproxy has it. */
  readonly cutsWhenDown?: boolean;
}

/** A real load balancer that asks each backend's readiness five times a second. */
export class Haproxy implements AsyncDisposable {
  readonly url: string;
  readonly port: number;
  readonly #child: Child;
  readonly #dir: string;
  readonly #statsPort: number;

  constructor(child: Child, dir: string, port: number, statsPort: number) {
    this.#child = child;
    this.#dir = dir;
    this.#statsPort = statsPort;
    this.port = port;
    this.url = `http://127.0.0.1:${port}`;
  }

  get pid(): number {
    return this.#child.pid;
  }

  get logs(): readonly string[] {
    return this.#child.lines;
  }

  /** Per backend, in the order given: does its last check say that it is up? A check that has not run yet is no. */
  async up(): Promise<boolean[]> {
    const response = await fetch(`http://127.0.0.1:${this.#statsPort}/;csv`, { signal: AbortSignal.timeout(2000) });
    const [header = '', ...rows] = (await response.text()).split('\n');
    const columns = header.replace('# ', '').split(',');
    const [name, status, check] = ['svname', 'status', 'check_status'].map((column) => columns.indexOf(column));
    return rows
      .map((row) => row.split(','))
      .filter((cells) => /^pod\d+$/.test(cells[name as number] ?? ''))
      .map((cells) => cells[status as number] === 'UP' && cells[check as number] === 'L7OK');
  }

  async stop(): Promise<void> {
    await this.#child.kill();
    await rm(this.#dir, { recursive: true, force: true });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

/** Resolves when it listens and every backend was checked once. Backends may be down. */
export async function startHaproxy(options: HaproxyOptions): Promise<Haproxy> {
  const { path, env } = await binary('haproxy');
  const [port, statsPort] = [await freePort(), await freePort()];
  const dir = await mkdtemp(join(tmpdir(), 'holdfast-haproxy-'));
  await writeFile(join(dir, 'haproxy.cfg'), configOf(options, port, statsPort));
  const child = new Child(path, { args: ['-db', '-f', join(dir, 'haproxy.cfg')], env: { ...process.env, ...env } });
  const haproxy = new Haproxy(child, dir, port, statsPort);
  try {
    await eventually(async () => !child.isRunning || (await haproxy.up()).length === options.backends.length, {
      withinMs: 10_000,
      what: 'haproxy',
    });
    if (!child.isRunning) throw new Error(`haproxy ended at once:\n${child.tail()}`);
  } catch (error) {
    await haproxy.stop();
    throw error;
  }
  return haproxy;
}

function configOf(options: HaproxyOptions, port: number, statsPort: number): string {
  const { backends, balance = 'roundrobin', tunnelTimeout = '1h', cutsWhenDown = false } = options;
  const whenDown = cutsWhenDown ? ' on-marked-down shutdown-sessions' : '';
  return `
global
  maxconn 4000
  nbthread 1

defaults
  mode http
  timeout connect 1s
  timeout client 30s
  timeout server 30s
  timeout tunnel ${tunnelTimeout}
  timeout check 1s
  option redispatch
  retries 2

frontend public
  bind 127.0.0.1:${port}
  default_backend pods

frontend stats
  bind 127.0.0.1:${statsPort}
  stats enable
  stats uri /

backend pods
  balance ${balance}
  option httpchk GET /_readiness
${backends.map((b, i) => `  server pod${i} ${b.host}:${b.port} check port ${b.opsPort} inter 200ms fall 1 rise 1${whenDown}`).join('\n')}
`;
}
