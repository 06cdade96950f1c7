import { sleep } from '../../src/core/sleep.js';
import { open } from '../harness/client.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import type { AdmissionRig } from './rig.js';

/** Far below the interval of the revalidation, which has to be set so, and far above what a notice takes. */
const NOTICE_MS = 20_000;
/** At the beginning an archive falls between this before and this after the CONNECT packet. */
const SPREAD_MS = 40;
/** Rounds at once: each has a connection of its own to Postgres. */
const AT_ONCE = 4;

/** For a rig whose archives count by their notices, and not at the next revalidation. */
export const BY_NOTICE = { HOLDFAST_ADMISSION_REVALIDATE_MS: '10m' };

type Fate = 'open' | 'refused' | 'closed';

/** Tenants that are archived at some moment around the connect of a client of theirs. */
export async function archiveRaces(rig: AdmissionRig, rounds: number) {
  const counts = { open: 0, refused: 0, closed: 0 };
  let spreadMs = SPREAD_MS;
  for (let from = 0; from < rounds; from += AT_ONCE) {
    const numbers = Array.from({ length: Math.min(AT_ONCE, rounds - from) }, (_, index) => from + index);
    const races = await Promise.all(numbers.map((number) => race(rig, number, spreadMs)));
    for (const { fate } of races) counts[fate]++;
    // on a slow machine all archives would fall before the verdict, or all after it
    spreadMs = Math.max(
      SPREAD_MS,
      1.5 * Math.max(...races.flatMap(({ knownMs, archivedMs }) => [knownMs, archivedMs])),
    );
  }
  return counts;
}

async function race(rig: AdmissionRig, number: number, spreadMs: number) {
  const tenant = `race-${number}-${Date.now()}`;
  const jwt = await token({ sub: 'ann', tenant, caps: ALL_CAPS });
  const pod = rig.pods[number % rig.pods.length] as Pod;
  const archive = async (): Promise<number> => {
    await sleep((number % 8) * (spreadMs / 4));
    const from = performance.now();
    await rig.archive(tenant);
    return performance.now() - from;
  };
  const archiving = archive();
  await sleep(spreadMs);
  const from = performance.now();
  await using client = open(pod.url, { token: jwt });
  const isKnown = (): boolean => client.connects.length + client.connectErrors.length > 0;
  await eventually(isKnown, { withinMs: 60_000, what: 'a client to know where it is' });
  const knownMs = performance.now() - from;
  const archivedMs = await archiving;
  const isOut = (): boolean => client.connectErrors.length + client.disconnects.length > 0;
  await eventually(isOut, { withinMs: NOTICE_MS, what: 'the end of a socket' }).catch(() => {});
  const fate: Fate = client.connectErrors.length > 0 ? 'refused' : client.disconnects.length > 0 ? 'closed' : 'open';
  return { fate, knownMs, archivedMs };
}
