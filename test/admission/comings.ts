import { expect } from 'vitest';
import { sleep } from '../../src/core/sleep.js';
import { RawClient } from '../gateway/raw-client.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import type { AdmissionRig } from './rig.js';

export interface Comings {
  /** Tokens that prove nothing. */
  readonly refused: number;
  /** Connections that are reset while they are looked at. */
  readonly resets: number;
  /** Devices each of whose connections is taken over by another one, after the settle window. */
  readonly takeovers: number;
  /** Clients that come and say goodbye. */
  readonly clean: number;
}

const GAUGES = [
  'holdfast_connections',
  'holdfast_device_sessions',
  'holdfast_admission_unconfirmed',
  'holdfast_slow_consumers_behind',
];

/** Of all pods together: series → value, and names → the sum of their series. */
async function counted(pods: readonly Pod[]) {
  const all = await Promise.all(pods.map((pod) => pod.metrics()));
  const sum = (name: string): number =>
    all.reduce(
      (total, metrics) =>
        [...metrics].reduce(
          (part, [series, value]) => (series === name || series.startsWith(`${name}{`) ? part + value : part),
          total,
        ),
      0,
    );
  return { sum };
}

/** Everybody comes and goes in his own way; afterwards every gauge is 0 and the counters add up. */
export async function comeAndGo(rig: AdmissionRig, { refused, resets, takeovers, clean }: Comings): Promise<void> {
  const before = await counted(rig.pods);
  const podOf = (index: number): Pod => rig.pods[index % rig.pods.length] as Pod;
  const jwt = (sub: string, device?: string) => token({ sub, caps: ALL_CAPS, ...(device && { device }) });
  const work: (() => Promise<void>)[] = [];
  for (let index = 0; index < refused; index++)
    work.push(async () => {
      await using client = new RawClient(podOf(index).port);
      expect((await client.open({ token: `forged-${index}` })).data?.code).toBe('unauthorized');
    });
  for (let index = 0; index < resets; index++)
    work.push(async () => {
      const client = new RawClient(podOf(index).port);
      await client.next(/^0/);
      client.send(`40${JSON.stringify({ token: await jwt(`reset-${index}`, 'screen') })}`);
      client.socket.resetAndDestroy();
    });
  for (let index = 0; index < takeovers; index++)
    work.push(async () => {
      const auth = { token: await jwt(`taken-${index}`, 'screen') };
      const first = new RawClient(podOf(index).port);
      await first.open(auth);
      await sleep(rig.settleMs + 50);
      await using second = new RawClient(podOf(index + 1).port);
      await second.open(auth);
      await first.closed();
      second.send('41');
    });
  for (let index = 0; index < clean; index++)
    work.push(async () => {
      await using client = new RawClient(podOf(index).port);
      await client.open({ token: await jwt(`clean-${index}`) });
      client.send('41');
    });
  for (let from = 0; from < work.length; from += 40) await Promise.all(work.slice(from, from + 40).map((run) => run()));
  await eventually(
    async () => {
      const now = await counted(rig.pods);
      const rise = (name: string): number => now.sum(name) - before.sum(name);
      expect(GAUGES.map((name) => [name, now.sum(name)])).toEqual(GAUGES.map((name) => [name, 0]));
      expect(rise('holdfast_disconnects_total')).toBe(rise('holdfast_connections_accepted_total'));
      expect(rise('holdfast_connections_refused_total{reason="unauthorized"}')).toBe(refused);
      expect(rise('holdfast_session_evictions_total{cause="takeover"}')).toBe(takeovers);
      expect(rise('holdfast_disconnects_total{code="session_replaced"}')).toBe(takeovers);
      // a reset may have come before, during or after its verdict
      const accepted = rise('holdfast_connections_accepted_total');
      const ofResets = accepted + rise('holdfast_connections_refused_total{reason="aborted"}') - 2 * takeovers - clean;
      expect(ofResets).toBeGreaterThanOrEqual(0);
      expect(ofResets).toBeLessThanOrEqual(resets);
    },
    { withinMs: 20_000, what: 'all gauges to be 0 and the counters to add up' },
  );
}
