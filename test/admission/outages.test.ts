import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { makeApiKey, makeDeviceToken } from '../../src/admission/secret-text.js';
import { sleep } from '../../src/core/sleep.js';
import { ask } from '../gateway/fixture.js';
import { type Client, connect, open } from '../harness/client.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { AdmissionRig } from './rig.js';

/** Well-formed, and nobody's: whether they are good only the database can say. */
const [deviceToken, apiKey] = [makeDeviceToken(), makeApiKey().key];

interface Fault {
  readonly name: string;
  begin(): Promise<void>;
  end(): Promise<void>;
  /** The server answers, and says that the look-up can't be: a fault of somebody's, and an `error` in the pods' log. */
  readonly isOurs?: boolean;
}

let rig: AdmissionRig;
beforeAll(async () => {
  rig = await AdmissionRig.start();
});
afterAll(async () => {
  await rig?.[Symbol.asyncDispose]();
});

/** Holds every table that admission reads until told to let go: each look-up waits, and with it its connection. */
function lockTables(): Pick<Fault, 'begin' | 'end'> {
  let letGo: () => void = () => {};
  let held: Promise<unknown> = Promise.resolve();
  return {
    begin: async () => {
      const { Client: PgClient } = await import('pg');
      const client = new PgClient(rig.databaseUrl);
      await client.connect();
      await client.query('begin; lock table tenants, devices, api_keys, revocations in access exclusive mode');
      held = new Promise<void>((resolve) => {
        letGo = resolve;
      }).then(() => client.end());
    },
    end: async () => {
      letGo();
      await held;
    },
  };
}

const FAULTS: readonly Fault[] = [
  { name: 'stopped', begin: () => rig.postgres.shutDown('immediate'), end: () => rig.postgres.start() },
  { name: 'SIGSTOPped', begin: () => rig.postgres.pause(), end: () => rig.postgres.resume() },
  { name: 'black-holed', begin: async () => rig.proxy.blackhole(true), end: async () => rig.proxy.blackhole(false) },
  { name: 'slow', begin: async () => rig.proxy.delay(700), end: async () => rig.proxy.delay(0) },
  { name: 'locked, its pool exhausted', ...lockTables() },
  {
    name: 'without a table',
    begin: async () => void (await rig.sql('alter table tenants rename to tenants_away')),
    end: async () => void (await rig.sql('alter table tenants_away rename to tenants')),
    isOurs: true,
  },
  {
    name: 'with a column of the wrong type',
    begin: async () => void (await rig.sql('alter table devices rename id to id_away; alter table devices add id int')),
    end: async () => void (await rig.sql('alter table devices drop id; alter table devices rename id_away to id')),
    isOurs: true,
  },
];

/** A fault that ends with its test, also when that fails: the next one finds everything as it was. */
async function faulty(begin: Fault['begin'], end: Fault['end']) {
  await begin();
  let ending: Promise<void> | undefined;
  const endOnce = (): Promise<void> => {
    ending ??= end();
    return ending;
  };
  return { end: endOnce, [Symbol.asyncDispose]: endOnce };
}

/** Asks until told to stop, and keeps how long the slowest answer took and what else came than 200. */
function watchReadiness(pods: readonly Pod[]) {
  const seen = { slowestMs: 0, others: [] as unknown[], asked: 0 };
  const over = new AbortController();
  const watching = pods.map(async (pod) => {
    while (!over.signal.aborted) {
      const from = performance.now();
      const status = await fetch(`${pod.opsUrl}/_readiness`).then((response) => response.status, String);
      seen.slowestMs = Math.max(seen.slowestMs, performance.now() - from);
      seen.asked++;
      if (status !== 200) seen.others.push(status);
      await sleep(200, over.signal);
    }
  });
  const stop = async () => {
    over.abort();
    await Promise.all(watching);
    return seen;
  };
  return { stop, [Symbol.asyncDispose]: async () => void (await stop()) };
}

/** `device:throttled`, `holdfast:closing` and the like that it was told. */
function told(client: Client): unknown[] {
  return client.control.map(({ event, args }) => [event, ...args]);
}

describe.each(FAULTS)('Postgres is $name', ({ begin, end, isOurs = false }) => {
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
    const logged = rig.pods.map((pod) => pod.logs.length);
    await using fault = await faulty(begin, end);
    await using readiness = watchReadiness(rig.pods);
    const admitted = await Promise.all(
      rig.pods.flatMap(({ url }) =>
        Array.from({ length: 20 }, async (_, index) => {
          const jwt = await token({ sub: `user-${index}`, tenant: index === 0 ? archived : blocked, caps: ALL_CAPS });
          const from = performance.now();
          const client = await connect(url, { token: jwt });
          return { client, ms: performance.now() - from };
        }),
      ),
    );
    expect(Math.max(...admitted.map(({ ms }) => ms))).toBeLessThan(2000);

    // who can't be proven; the tables of secrets are there in the other faults
    for (const pod of isOurs ? [] : rig.pods) {
      await using forged = open(pod.url, { token: deviceToken, reconnectionDelayMs: 60_000 });
      await eventually(() => forged.control.length > 0, { what: 'word of why it must go' });
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

    const { others, slowestMs, asked } = await readiness.stop();
    expect([asked > 0, others]).toEqual([true, []]);
    expect(slowestMs).toBeLessThan(1000);
    for (const client of [...live, ...admitted.map(({ client }) => client)]) expect(client.disconnects).toEqual([]);
    const lines = rig.pods.flatMap((pod, index) => pod.logs.slice(logged[index]));
    expect(lines.some((line) => line.includes('"lookups_failing"') && line.includes('"level":50') === isOurs)).toBe(
      true,
    );

    await fault.end();
    await eventually(() => rig.archive(archived).then(() => true), { what: 'Postgres to be back' });
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
