import { sleep } from '../../src/core/sleep.js';
import { open } from '../harness/client.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import type { AdmissionRig } from './rig.js';

/** Far below the interval of the revalidation, and far above what a notice takes. */
const NOTICE_MS = 4000;
/** An archive falls between this before and this after the CONNECT packet. */
const SPREAD_MS = 40;

/** Tenants that are archived at some moment around the connect of a client of theirs. */
export async function archiveRaces(rig: AdmissionRig, rounds: number) {
  const counts = { open: 0, refused: 0, closed: 0 };
  const runs = Array.from({ length: rounds }, (_, round) => async () => {
    const tenant = `race-${round}-${Date.now()}`;
    const jwt = await token({ sub: 'ann', tenant, caps: ALL_CAPS });
    const pod = rig.pods[round % rig.pods.length] as Pod;
    const early = (round % 8) * (SPREAD_MS / 4) - SPREAD_MS;
    const archiving = sleep(SPREAD_MS + early).then(() => rig.archive(tenant));
    await sleep(SPREAD_MS);
    await using client = open(pod.url, { token: jwt });
    await archiving;
    const isOut = (): boolean => client.connectErrors.length > 0 || client.disconnects.length > 0;
    await eventually(isOut, { withinMs: NOTICE_MS, what: 'the end of a socket' }).catch(() => counts.open++);
    if (client.connectErrors.length > 0) counts.refused++;
    else if (client.disconnects.length > 0) counts.closed++;
  });
  // some at a time: each round has a connection of its own to Postgres
  for (let from = 0; from < runs.length; from += 4) await Promise.all(runs.slice(from, from + 4).map((run) => run()));
  return counts;
}
