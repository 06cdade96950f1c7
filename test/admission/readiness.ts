import { get } from 'node:http';
import { sleep } from '../../src/core/sleep.js';
import { Child } from '../harness/child.js';
import { waitedForCoreMs } from '../harness/cpu.js';
import { freePort } from '../harness/free-port.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';

const EVERY_MS = 200;
/** A pod that has not answered by then counts as one that answered something else. */
const PATIENCE_MS = 30_000;

const BARE = `
const { createServer } = require('node:http');
createServer((request, response) => response.end('ready')).listen(Number(process.argv[1]), '127.0.0.1');
`;

/** A process that answers 200 and does nothing else: what is late there as well is late by the machine or by who asks. */
export interface BareServer extends AsyncDisposable {
  readonly url: string;
}

export async function startBareServer(): Promise<BareServer> {
  const port = await freePort();
  const child = new Child(process.execPath, { args: ['-e', BARE, String(port)] });
  const url = `http://127.0.0.1:${port}`;
  try {
    await eventually(async () => !child.isRunning || (await ask(url)).status === 200, {
      withinMs: 45_000,
      what: 'the bare server',
    });
    if (!child.isRunning) throw new Error(`the bare server ended at once:\n${child.tail()}`);
  } catch (error) {
    await child.kill();
    throw error;
  }
  return { url, [Symbol.asyncDispose]: async () => void (await child.kill()) };
}

export interface ReadinessFigures {
  /** Of all pods together, all of them at once every 200 ms. */
  readonly asked: number;
  /** What came instead of 200. */
  readonly others: readonly unknown[];
  readonly slowestMs: number;
  /** Of the bare server, which was asked at the same moments. */
  readonly bareSlowestMs: number;
  /** Answers above the limit. */
  readonly late: number;
  readonly bareLate: number;
  /**
   * Of pods, at moments at which the bare server was in time, in ms without the time for which the pod, or who asks, was
   * ready to run and had no core: others' work is no fault of its own, and hits whoever works more than the bare server does.
   */
  readonly lateByThemselves: readonly number[];
}

/** Asks until told to stop. */
export function watchReadiness(pods: readonly Pick<Pod, 'opsUrl' | 'pid'>[], bare: BareServer, limitMs: number) {
  const others: unknown[] = [];
  const lateByThemselves: number[] = [];
  const seen = { asked: 0, slowestMs: 0, bareSlowestMs: 0, late: 0, bareLate: 0 };
  const over = new AbortController();
  const lookOnce = async (): Promise<void> => {
    const [control, ...answers] = await Promise.all([ask(bare.url), ...pods.map(askPod)]);
    const isBareLate = control.ms >= limitMs;
    if (isBareLate) seen.bareLate++;
    seen.bareSlowestMs = Math.max(seen.bareSlowestMs, control.ms);
    for (const { status, ms, ownMs } of answers) {
      seen.asked++;
      seen.slowestMs = Math.max(seen.slowestMs, ms);
      if (status !== 200) others.push(status);
      if (ms >= limitMs) seen.late++;
      if (ownMs >= limitMs && !isBareLate) lateByThemselves.push(Math.round(ownMs));
    }
  };
  const watching = (async () => {
    const looks: Promise<void>[] = [];
    while (!over.signal.aborted) {
      looks.push(lookOnce());
      await sleep(EVERY_MS, over.signal);
    }
    await Promise.all(looks);
  })();
  const stop = async (): Promise<ReadinessFigures> => {
    over.abort();
    await watching;
    const { asked, late, bareLate, slowestMs, bareSlowestMs } = seen;
    const rounded = { slowestMs: Math.round(slowestMs), bareSlowestMs: Math.round(bareSlowestMs) };
    return { asked, others, ...rounded, late, bareLate, lateByThemselves };
  };
  return { stop, [Symbol.asyncDispose]: async () => void (await stop()) };
}

async function ask(url: string): Promise<{ readonly status: unknown; readonly ms: number }> {
  const from = performance.now();
  const status = await statusOf(url);
  return { status, ms: performance.now() - from };
}

async function askPod({ opsUrl, pid }: Pick<Pod, 'opsUrl' | 'pid'>) {
  const waited = (): number => waitedForCoreMs(pid) + waitedForCoreMs(process.pid);
  const before = waited();
  const { status, ms } = await ask(`${opsUrl}/_readiness`);
  return { status, ms, ownMs: ms - (waited() - before) };
}

/**
 * Over a connection of its own, as a probe does: one that is kept may be closed at the moment it is used again. Never rejects:
 * whatever is no answer has its reason in place of a status.
 */
export function statusOf(url: string): Promise<unknown> {
  return new Promise((resolve) => {
    const fail = (error: Error): void => resolve(String(error));
    get(url, { agent: false, signal: AbortSignal.timeout(PATIENCE_MS) }, (response) => {
      response.resume();
      response.on('end', () => resolve(response.statusCode));
      response.on('error', fail);
    }).on('error', fail);
  });
}
