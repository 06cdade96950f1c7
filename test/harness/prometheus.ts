import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { binary } from './binaries.js';
import { Child } from './child.js';
import { freePort } from './free-port.js';
import { eventually } from './poll.js';

export interface Sample {
  readonly metric: Readonly<Record<string, string>>;
  readonly value: number;
}

export interface PrometheusOptions {
  /** `host:port` of each private listener. */
  readonly targets: readonly string[];
  /** Between two scrapes of a target, in ms; default 250. */
  readonly scrapeMs?: number;
}

/** A real Prometheus that scrapes `/metrics` of the targets. */
export class Prometheus implements AsyncDisposable {
  readonly url: string;
  readonly #child: Child;
  readonly #dir: string;

  constructor(child: Child, dir: string, port: number) {
    this.#child = child;
    this.#dir = dir;
    this.url = `http://127.0.0.1:${port}`;
  }

  /** An instant query whose answer is a vector or a scalar (then without labels). */
  async query(expression: string): Promise<Sample[]> {
    const url = `${this.url}/api/v1/query?query=${encodeURIComponent(expression)}`;
    const response = await fetch(url, { signal: AbortSignal.timeout(5000) });
    const answer = (await response.json()) as Answer;
    if (answer.status !== 'success') throw new Error(`${expression}: ${answer.error}`);
    const { resultType, result } = answer.data;
    if (resultType === 'scalar') return [{ metric: {}, value: Number(result[1]) }];
    return result.map(({ metric, value }) => ({ metric, value: Number(value[1]) }));
  }

  async stop(): Promise<void> {
    await this.#child.kill();
    await rm(this.#dir, { recursive: true, force: true });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

type Answer =
  | { readonly status: 'error'; readonly error: string }
  | {
      readonly status: 'success';
      readonly data:
        | { readonly resultType: 'scalar'; readonly result: readonly [number, string] }
        | {
            readonly resultType: 'vector';
            readonly result: readonly {
              readonly metric: Record<string, string>;
              readonly value: readonly [number, string];
            }[];
          };
    };

/** Resolves when each target was scraped once, up or not; Prometheus itself waits 5 s before its first scrape. */
export async function startPrometheus({ targets, scrapeMs = 250 }: PrometheusOptions): Promise<Prometheus> {
  const { path, env } = await binary('prometheus');
  const port = await freePort();
  const dir = await mkdtemp(join(tmpdir(), 'holdfast-prometheus-'));
  // JSON is YAML
  const config = {
    global: { scrape_interval: `${scrapeMs}ms`, scrape_timeout: `${scrapeMs}ms` },
    scrape_configs: [{ job_name: 'holdfast', static_configs: [{ targets }] }],
  };
  await writeFile(join(dir, 'prometheus.yml'), JSON.stringify(config));
  const child = new Child(path, {
    args: [
      `--config.file=${join(dir, 'prometheus.yml')}`,
      `--storage.tsdb.path=${join(dir, 'data')}`,
      `--web.listen-address=127.0.0.1:${port}`,
    ],
    env: { ...process.env, ...env },
  });
  const prometheus = new Prometheus(child, dir, port);
  try {
    await eventually(
      async () => !child.isRunning || (await prometheus.query('count(up)'))[0]?.value === targets.length,
      { withinMs: 30_000, what: 'the first scrapes of prometheus' },
    );
    if (!child.isRunning) throw new Error(`prometheus ended at once:\n${child.tail()}`);
  } catch (error) {
    await prometheus.stop();
    throw error;
  }
  return prometheus;
}

/** What `promtool check metrics` says of a scrape's text. */
export async function promtoolCheck(metrics: string): Promise<{ ok: boolean; errors: string[] }> {
  const { path, env } = await binary('promtool');
  const child = spawn(path, ['check', 'metrics'], { env: { ...process.env, ...env } });
  child.stdin.on('error', () => {}); // it may give up before it has read all
  child.stdin.end(metrics);
  const [out, errors, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'close')]);
  const lines = `${out}${errors}`.split('\n').filter((line) => line !== '');
  return { ok: code === 0, errors: lines };
}
