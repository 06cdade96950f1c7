import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { makeApiKey, makeDeviceToken } from '../../src/admission/secret-text.js';
import { ask } from '../gateway/fixture.js';
import { type Client, connect, open } from '../harness/client.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { begun, FAULTS } from './faults.js';
import { type BareServer, startBareServer, watchReadiness } from './readiness.js';
import { AdmissionRig } from './rig.js';

/** Well-formed, and nobody's: whether they are good only the database can say. */
const [deviceToken, apiKey] = [makeDeviceToken(), makeApiKey().key];

let rig: AdmissionRig;
let bare: BareServer;
beforeAll(async () => {
  [rig, bare] = await Promise.all([AdmissionRig.start(), startBareServer()]);
});
afterAll(async () => {
  await bare?.[Symbol.asyncDispose]();
  await rig?.[Symbol.asyncDispose]();
});

/** `device:throttled`, `holdfast:closing` and the like that it was told. */
function told(client: Client): unknown[] {
  return client.control.map(({ event, args }) => [event, ...args]);
}

describe.each(FAULTS)('Postgres is $name', (kind) => {
  const { isOurs = false } = kind;
  test('nobody who is proven is refused or closed, nobody else gets in, and it ends without a restart', async () => {
    const [archived, blocked] = [`archived-${Date.now()}`, `blocked-${Date.now()}`];
    const live = await Promise.all(
      rig.pods.map(async ({ url }) => connect(url, { token: await token({ sub: 'live', caps: ALL_CAPS }) })),
    );
    const areConfirmed = async (clients: readonly Client[]): Promise<boolean> => {
      const acks = await Promise.all(clients.map((client) => client.publish({ room: 'news', event: 'e', data: 1 })));
      return acks.every(({ ok }) => ok);
    };
    // a pod may not have found out yet that the fault before is over
    await eventually(() => areConfirmed(live), { withinMs: 10_000, what: 'the first clients to be confirmed' });
    const come = () =>
      Promise.all(
        rig.pods.flatMap(({ url }) =>
          Array.from({ length: 20 }, async (_, index) => {
            const jwt = await token({ sub: `user-${index}`, tenant: index === 0 ? archived : blocked, caps: ALL_CAPS });
            const from = performance.now();
            const client = await connect(url, { token: jwt });
            return { client, ms: performance.now() - from };
          }),
        ),
      );
    const slowestOf = (came: readonly { readonly ms: number }[]): number => Math.max(...came.map(({ ms }) => ms));
    const healthy = await come();
    await Promise.all(healthy.map(({ client }) => client.stop()));
    const logged = rig.pods.map((pod) => pod.logs.length);
    await using fault = await begun(kind, rig);
    await using readiness = watchReadiness(rig.pods, bare, 1000);
    const admitted = await come();
    // what they take when all is well is the machine's
    expect(slowestOf(admitted)).toBeLessThan(2000 + slowestOf(healthy));

    // who can't be proven; the tables of secrets are there in the other faults
    for (const pod of isOurs ? [] : rig.pods) {
      await using forged = open(pod.url, { token: deviceToken, reconnectionDelayMs: 60_000 });
      await eventually(() => forged.control.length > 0, { withinMs: 10_000, what: 'word of why it must go' });
      expect(told(forged)).toMatchObject([['holdfast:closing', { code: 'unavailable', reconnect: true }]]);
      expect(await forged.request('subscribe', { room: 'user:ann' })).toMatchObject({ ok: false, code: 'unavailable' });
      expect(forged.positions).toEqual([]);
      const answer = await ask(pod, 'GET', '/v1/history/room', { key: apiKey });
      expect(answer).toMatchObject({ status: 503, body: { code: 'unavailable', retryable: true } });
    }
    // a write needs a verdict that was confirmed
    const [unconfirmed, other] = admitted.map(({ client }) => client) as [Client, Client];
    expect(await unconfirmed.publish({ room: 'news', event: 'e', data: 1 })).toMatchObject({
      ok: false,
      code: 'unavailable',
      retryable: true,
    });
    // one that was confirmed a moment ago may go on
    expect(await areConfirmed(live)).toBe(true);

    const { asked, others, lateByThemselves } = await readiness.stop();
    expect({ isAsked: asked > 0, others, lateByThemselves }).toEqual({
      isAsked: true,
      others: [],
      lateByThemselves: [],
    });
    for (const client of [...live, ...admitted.map(({ client }) => client)]) expect(client.disconnects).toEqual([]);
    const lines = rig.pods.flatMap((pod, index) => pod.logs.slice(logged[index]));
    expect(lines.some((line) => line.includes('"lookups_failing"') && line.includes('"level":50') === isOurs)).toBe(
      true,
    );

    await fault.end();
    await eventually(() => rig.archive(archived).then(() => true), { withinMs: 10_000, what: 'Postgres to be back' });
    await eventually(() => unconfirmed.disconnects.length > 0, { withinMs: 10_000, what: 'the archived one to go' });
    expect(told(unconfirmed).at(-1)).toMatchObject(['holdfast:closing', { code: 'tenant_inactive', reconnect: false }]);
    for (const { client } of admitted.slice(1, 20)) expect(client.disconnects).toEqual([]);
    await eventually(async () => (await other.publish({ room: 'news', event: 'e', data: 1 })).ok, {
      withinMs: 10_000,
      what: 'a write to pass again',
    });
    await eventually(async () => (await rig.pod(0).metrics()).get('holdfast_admission_unconfirmed') === 0, {
      withinMs: 10_000,
      what: 'everybody to be confirmed',
    });
    await Promise.all([...live, ...admitted.map(({ client }) => client)].map((client) => client.stop()));
  });
});
