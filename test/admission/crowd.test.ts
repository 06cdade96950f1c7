import { Client as PgClient } from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { connect, open } from '../harness/client.js';
import { eventually } from '../harness/poll.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { crowdWhileItHangs, expectUnharmed, watchLookups } from './crowd.js';
import { archiveRaces, BY_NOTICE } from './races.js';
import { AdmissionRig } from './rig.js';

let rig: AdmissionRig;
beforeAll(async () => {
  rig = await AdmissionRig.start({ env: BY_NOTICE });
});
afterAll(async () => {
  await rig?.[Symbol.asyncDispose]();
});

test('300 clients that come at once while Postgres hangs are all let in, and nobody is dropped afterwards', {
  timeout: 300_000,
}, async () => {
  expectUnharmed(await crowdWhileItHangs(rig, 300));
});

test('whoever counts look-ups sees each that waits for Postgres, and none that was answered or given up', async () => {
  await using proxy = await startTcpProxy(rig.postgres.port);
  const url = rig.databaseUrl.replace(`:${rig.postgres.port}/`, `:${proxy.port}/`);
  const clients = ['holdfast:a', 'holdfast:a', 'holdfast:a', 'holdfast:b', 'holdfast:listen'].map(
    (name) => new PgClient({ connectionString: url, application_name: name }),
  );
  for (const client of clients) client.on('error', () => {});
  await Promise.all(clients.map((client) => client.connect()));
  using lookups = watchLookups(proxy, [{ name: 'a' }, { name: 'b' }]);
  for (const client of clients) await client.query('select 1');
  expect(lookups.most).toBe(1);
  proxy.dropReplies(true);
  const asked = clients.map((client) => client.query('select 1').catch(() => {}));
  await eventually(() => lookups.most === 3, { withinMs: 10_000, what: 'three look-ups of one pod at once' });
  proxy.rst();
  await Promise.all(asked);
  await eventually(() => proxy.waiting.length === 0, { withinMs: 10_000, what: 'nobody to wait' });
  expect(lookups.most).toBe(3);
});

test('no socket of a tenant stays that was archived while it connected, whenever that was', {
  timeout: 300_000,
}, async () => {
  const { open: stayed, refused, closed } = await archiveRaces(rig, 40);
  expect(stayed).toBe(0);
  // the moment was before the verdict for some, and after it for others
  expect([refused > 0, closed > 0]).toEqual([true, true]);
});

test('who gives up while Postgres hangs costs it nothing more, and counts as no outcome', {
  timeout: 180_000,
}, async () => {
  const counted = async (prefix: string): Promise<number> =>
    [...(await rig.pod(0).metrics())].reduce(
      (sum, [series, value]) => (series.startsWith(prefix) ? sum + value : sum),
      0,
    );
  const checks = () => counted('holdfast_admission_checks_total');
  const aborted = () => counted('holdfast_connections_refused_total{reason="aborted"}');
  const [holder, watcher] = [new PgClient(rig.databaseUrl), new PgClient(rig.databaseUrl)];
  await Promise.all([holder.connect(), watcher.connect()]);
  const areWaiting = async (): Promise<boolean> => {
    const waiting = "datname = current_database() and wait_event_type = 'Lock'";
    const { rowCount } = await watcher.query(`select from pg_stat_activity where ${waiting}`);
    return (rowCount ?? 0) > 0;
  };
  /** False: it was let in before it gave up. */
  const giveUp = async (): Promise<boolean> => {
    await using sound = await connect(rig.pod(0).url, { token: await token({ sub: 'sound', caps: ALL_CAPS }) });
    await eventually(async () => (await sound.publish({ room: 'r', event: 'e' })).ok, { withinMs: 30_000 });
    const [checksBefore, abortedBefore] = [await checks(), await aborted()];
    await holder.query('begin; lock table tenants in access exclusive mode');
    try {
      const client = open(rig.pod(0).url, { token: await token({ sub: 'impatient', caps: ALL_CAPS }) });
      await eventually(async () => client.connects.length > 0 || (await areWaiting()), {
        withinMs: 30_000,
        what: 'its look-up to be under way',
      });
      await client.stop();
      const ended = async (): Promise<boolean> => (await aborted()) > abortedBefore || (await checks()) > checksBefore;
      await eventually(ended, { withinMs: 30_000, what: 'the handshake to end' });
      if ((await aborted()) === abortedBefore) return false;
      expect(await checks()).toBe(checksBefore);
      await eventually(async () => !(await areWaiting()), { withinMs: 10_000, what: 'its look-up to end' });
      return true;
    } finally {
      await holder.query('rollback');
    }
  };
  try {
    // its look-up is under way for a second at most, which a busy machine may take to see it
    let tries = 1;
    while (!(await giveUp())) expect(++tries).toBeLessThanOrEqual(10);
  } finally {
    await Promise.all([holder.end(), watcher.end()]);
  }
});

test('an id that Postgres could not take proves nobody, and is refused before any look-up', async () => {
  const ids: unknown[] = ['\u0000', 'a\u0000b', '\ud800', 'x'.repeat(1_000_000), 7, ['a'], { a: 1 }, true, ''];
  for (const id of ids)
    for (const claim of ['sub', 'tenant', 'device']) {
      const jwt = await token({ sub: 'ann', caps: ALL_CAPS, claims: { [claim]: id } });
      await using client = open(rig.pod(0).url, { token: jwt });
      await eventually(() => client.connectErrors.length > 0, { withinMs: 30_000, what: `a refusal of ${claim}` });
      expect(client.connects).toEqual([]);
    }
  await using sound = await connect(rig.pod(0).url, { token: await token({ sub: 'ann', caps: ALL_CAPS }) });
  expect(sound.socket.connected).toBe(true);
});
