import { expect } from 'vitest';
import { RawClient } from '../gateway/raw-client.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import type { AdmissionRig } from './rig.js';

export interface CrowdFigures {
  readonly clients: number;
  readonly admittedMs: number;
  readonly slowestMs: number;
  /** Connections to Postgres of one pod that served at once, at most. */
  readonly mostConnections: number;
  readonly checkErrors: number;
  readonly notReady: number;
  /** Of the worst pod, in ms. */
  readonly loopDelayP99: number;
  readonly loopDelayMax: number;
  /** From the end of the fault until the last one was confirmed. */
  readonly confirmedMs: number;
  readonly dropped: number;
}

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

/** So many clients connect at once, while Postgres takes connections and says nothing; or, as a control, while it is well. */
export async function crowdWhileItHangs(rig: AdmissionRig, clients: number, hangs = true): Promise<CrowdFigures> {
  const tokens = await Promise.all(
    Array.from({ length: clients }, (_, index) => token({ sub: `one-of-${index}`, caps: ALL_CAPS })),
  );
  const errors = 'holdfast_admission_checks_total{outcome="check_error"}';
  const errorsBefore = await sum(rig.pods, errors);
  rig.proxy.blackhole(hangs);
  let mostConnections = 0;
  let notReady = 0;
  let isOver = false;
  const watching = eventually(
    async () => {
      mostConnections = Math.max(mostConnections, rig.proxy.connections);
      for (const pod of rig.pods) if ((await fetch(`${pod.opsUrl}/_readiness`)).status !== 200) notReady++;
      return isOver;
    },
    { withinMs: 300_000, what: 'the crowd to be in' },
  );
  await Promise.all(rig.pods.map(loopDelay));
  const from = performance.now();
  let slowestMs = 0;
  const crowd = await Promise.all(
    tokens.map(async (jwt, index) => {
      const client = new RawClient((rig.pods[index % rig.pods.length] as Pod).port);
      const startedAt = performance.now();
      await client.open({ token: jwt });
      slowestMs = Math.max(slowestMs, performance.now() - startedAt);
      return client;
    }),
  );
  const admittedMs = performance.now() - from;
  const delays = await Promise.all(rig.pods.map(loopDelay));
  isOver = true;
  await watching;
  const checkErrors = (await sum(rig.pods, errors)) - errorsBefore;
  const endedAt = performance.now();
  rig.proxy.blackhole(false);
  await eventually(async () => (await sum(rig.pods, 'holdfast_admission_unconfirmed')) === 0, {
    withinMs: 30_000,
    what: 'everybody to be confirmed',
  });
  const confirmedMs = performance.now() - endedAt;
  const dropped = crowd.filter((client) => client.isClosed).length;
  await Promise.all(crowd.map((client) => client.stop()));
  return {
    clients,
    admittedMs: Math.round(admittedMs),
    slowestMs: Math.round(slowestMs),
    mostConnections: Math.ceil(mostConnections / rig.pods.length),
    checkErrors,
    notReady,
    loopDelayP99: Math.round(Math.max(...delays.map(({ p99 }) => p99))),
    loopDelayMax: Math.round(Math.max(...delays.map(({ max }) => max))),
    confirmedMs: Math.round(confirmedMs),
    dropped,
  };
}

/** Pool, listener and the connection of `/_status`. */
const MOST_CONNECTIONS = 4 + 1 + 1;

export function expectUnharmed({ clients, checkErrors, notReady, mostConnections, dropped }: CrowdFigures): void {
  // proxies keep a connection that was given up until its peer says so
  expect(mostConnections).toBeLessThanOrEqual(2 * MOST_CONNECTIONS);
  expect({ checkErrors, notReady, dropped }).toEqual({ checkErrors: clients, notReady: 0, dropped: 0 });
}
