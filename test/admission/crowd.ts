import { expect } from 'vitest';
import { sleep } from '../../src/core/sleep.js';
import { RawClient } from '../gateway/raw-client.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import type { TcpProxy } from '../harness/tcp-proxy.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { statusOf } from './readiness.js';
import type { AdmissionRig } from './rig.js';

export interface CrowdFigures {
  readonly clients: number;
  readonly admittedMs: number;
  readonly slowestMs: number;
  /** Of one pod that waited for Postgres at once, at most. */
  readonly mostLookups: number;
  readonly checkErrors: number;
  readonly notReady: number;
  /** Of the worst pod, in ms. */
  readonly loopDelayP99: number;
  readonly loopDelayMax: number;
  /** From the end of the fault until the last one was confirmed. */
  readonly confirmedMs: number;
  readonly dropped: number;
}

/** Some hundred at once are work for the machine, whatever Postgres does: none of these is a promise. */
const PATIENCE_MS = 120_000;

/** Since the last look, in ms: a look begins it anew. */
async function loopDelay(pod: Pod): Promise<{ readonly p99: number; readonly max: number }> {
  const metrics = await pod.metrics();
  const stat = (name: string): number =>
    1000 * (metrics.get(`holdfast_event_loop_delay_seconds{stat="${name}"}`) ?? Number.NaN);
  return { p99: stat('p99'), max: stat('max') };
}
const sum = async (pods: readonly Pod[], series: string): Promise<number> =>
  (await Promise.all(pods.map((pod) => pod.metrics()))).reduce(
    (total, metrics) => total + (metrics.get(series) ?? 0),
    0,
  );

/** Counts each pod's connections for look-ups that wait for an answer; what listens, or asks for `/_status`, has another name. */
export function watchLookups(proxy: TcpProxy, pods: readonly Pick<Pod, 'name'>[]) {
  const seen = {
    /** Of one pod at once, since the beginning. */
    most: 0,
    [Symbol.dispose]: (): void => {
      proxy.onRequest = () => {};
    },
  };
  proxy.onRequest = () => {
    const openings = proxy.waiting;
    for (const { name } of pods) {
      const own = openings.filter((opening) => opening.includes(`\0application_name\0holdfast:${name}\0`));
      seen.most = Math.max(seen.most, own.length);
    }
  };
  return seen;
}

/** Postgres takes connections and requests, and says nothing; or all is well, where that is the control. */
function silent(proxy: TcpProxy, isSilent: boolean) {
  proxy.dropReplies(isSilent);
  const end = (): void => proxy.dropReplies(false);
  return { end, [Symbol.dispose]: end };
}

/** Counts probes that were not answered with 200. */
function watchReady(pods: readonly Pod[]) {
  const over = new AbortController();
  let notReady = 0;
  const watching = (async () => {
    while (!over.signal.aborted) {
      const statuses = await Promise.all(pods.map(({ opsUrl }) => statusOf(`${opsUrl}/_readiness`)));
      notReady += statuses.filter((status) => status !== 200).length;
      await sleep(20, over.signal);
    }
  })();
  const stop = async (): Promise<number> => {
    over.abort();
    await watching;
    return notReady;
  };
  return { stop, [Symbol.asyncDispose]: async () => void (await stop()) };
}

/** So many clients connect at once, while Postgres takes connections and says nothing; or, as a control, while it is well. */
export async function crowdWhileItHangs(rig: AdmissionRig, clients: number, hangs = true): Promise<CrowdFigures> {
  const tokens = await Promise.all(
    Array.from({ length: clients }, (_, index) => token({ sub: `one-of-${index}`, caps: ALL_CAPS })),
  );
  const errors = 'holdfast_admission_checks_total{outcome="check_error"}';
  const errorsBefore = await sum(rig.pods, errors);
  using silence = silent(rig.proxy, hangs);
  using lookups = watchLookups(rig.proxy, rig.pods);
  await using readiness = watchReady(rig.pods);
  await Promise.all(rig.pods.map(loopDelay));
  const from = performance.now();
  let slowestMs = 0;
  const crowd = await Promise.all(
    tokens.map(async (jwt, index) => {
      const client = new RawClient((rig.pods[index % rig.pods.length] as Pod).port);
      const startedAt = performance.now();
      await client.open({ token: jwt }, PATIENCE_MS);
      slowestMs = Math.max(slowestMs, performance.now() - startedAt);
      return client;
    }),
  );
  const admittedMs = performance.now() - from;
  const delays = await Promise.all(rig.pods.map(loopDelay));
  const notReady = await readiness.stop();
  const checkErrors = (await sum(rig.pods, errors)) - errorsBefore;
  const mostLookups = lookups.most;
  const endedAt = performance.now();
  silence.end();
  await eventually(async () => (await sum(rig.pods, 'holdfast_admission_unconfirmed')) === 0, {
    withinMs: PATIENCE_MS,
    what: 'everybody to be confirmed',
  });
  const confirmedMs = performance.now() - endedAt;
  const dropped = crowd.filter((client) => client.isClosed).length;
  await Promise.all(crowd.map((client) => client.stop()));
  return {
    clients,
    admittedMs: Math.round(admittedMs),
    slowestMs: Math.round(slowestMs),
    mostLookups,
    checkErrors,
    notReady,
    loopDelayP99: Math.round(Math.max(...delays.map(({ p99 }) => p99))),
    loopDelayMax: Math.round(Math.max(...delays.map(({ max }) => max))),
    confirmedMs: Math.round(confirmedMs),
    dropped,
  };
}

/** `HOLDFAST_ADMISSION_POOL`. */
const POOL = 4;

export function expectUnharmed({ clients, checkErrors, notReady, mostLookups, dropped }: CrowdFigures): void {
  expect(mostLookups).toBeLessThanOrEqual(POOL);
  expect(mostLookups).toBeGreaterThan(0);
  expect({ checkErrors, notReady, dropped }).toEqual({ checkErrors: clients, notReady: 0, dropped: 0 });
}
