import { afterAll, beforeAll, expect, test } from 'vitest';
import { sleep } from '../../src/core/sleep.js';
import { type Client, connect } from '../harness/client.js';
import { recordEvidence } from '../harness/evidence.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { begun, FAULTS } from './faults.js';
import { type BareServer, startBareServer, watchReadiness } from './readiness.js';
import { AdmissionRig } from './rig.js';

const WATCHED_MS = 60_000;
const LIMIT_MS = 100;

const figures: Record<string, object> = {};

let rig: AdmissionRig;
let bare: BareServer;
beforeAll(async () => {
  [rig, bare] = await Promise.all([AdmissionRig.start(), startBareServer()]);
});
afterAll(async () => {
  await bare?.[Symbol.asyncDispose]();
  await rig?.[Symbol.asyncDispose]();
  // a run of some of them is no evidence
  if (Object.keys(figures).length === FAULTS.length) await recordEvidence('admission-readiness', figures);
});

/** One more client of each pod a second, so that there is always something to look up. */
async function comeForMs(pods: readonly Pod[], ms: number): Promise<Client[]> {
  const clients: Client[] = [];
  const until = performance.now() + ms;
  while (performance.now() < until) {
    const jwt = await token({ sub: `user-${clients.length}`, caps: ALL_CAPS });
    clients.push(...(await Promise.all(pods.map(({ url }) => connect(url, { token: jwt })))));
    await sleep(Math.max(0, Math.min(1000, until - performance.now())));
  }
  return clients;
}

test.each(FAULTS)(
  'for a minute Postgres is $name, and every pod is ready at once, whenever it is asked',
  async (fault) => {
    await using outage = await begun(fault, rig);
    await using readiness = watchReadiness(rig.pods, bare, LIMIT_MS);
    const clients = await comeForMs(rig.pods, WATCHED_MS);
    const seen = await readiness.stop();
    await outage.end();
    // the next fault finds pods that know that this one is over
    await eventually(
      async () => {
        const all = await Promise.all(rig.pods.map((pod) => pod.metrics()));
        expect(all.map((metrics) => metrics.get('holdfast_admission_unconfirmed'))).toEqual(all.map(() => 0));
      },
      { withinMs: 30_000, what: 'everybody to be confirmed' },
    );
    const dropped = clients.filter(({ disconnects }) => disconnects.length > 0).length;
    figures[fault.name] = { seconds: WATCHED_MS / 1000, pods: rig.pods.length, came: clients.length, dropped, ...seen };
    await Promise.all(clients.map((client) => client.stop()));
    expect({ others: seen.others, lateByThemselves: seen.lateByThemselves, dropped }).toEqual({
      others: [],
      lateByThemselves: [],
      dropped: 0,
    });
  },
);
