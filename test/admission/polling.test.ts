import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { sleep } from '../../src/core/sleep.js';
import { ask } from '../gateway/fixture.js';
import { type Client, connect, open } from '../harness/client.js';
import { eventually } from '../harness/poll.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { fateOf, isIn, settled, someDevice } from './devices.js';
import { AdmissionRig } from './rig.js';

/** Long enough for two connects in a row on a busy machine. */
const SETTLE_MS = 3000;
/** For what has no deadline of its own. */
const withinMs = 10_000;

let rig: AdmissionRig;
let names = 0;
beforeAll(async () => {
  rig = await AdmissionRig.start({
    env: { HOLDFAST_GATEWAY_POLLING: 'on', HOLDFAST_SETTLE_MS: String(SETTLE_MS), HOLDFAST_ADMISSION_WARMUP_MS: '0' },
  });
});
afterAll(async () => {
  await rig?.[Symbol.asyncDispose]();
});

const someTenant = (): string => `tenant-${++names}`;

/** It was told why, then disconnected, and does not come back. */
async function staysAway(client: Client, code: string): Promise<void> {
  await eventually(() => client.disconnects.length > 0, { withinMs, what: 'the end of a connection' });
  expect(fateOf(client)).toBe(code);
  expect(client.disconnects.map(({ reason }) => reason)).toEqual(['io server disconnect']);
  expect([client.socket.active, client.connects.length]).toEqual([false, 1]);
}

describe.each([
  { name: 'polling', transports: ['polling'] },
  { name: 'polling and then upgrading', transports: ['polling', 'websocket'] },
] as const)('a client that is $name', ({ transports }) => {
  const come = async (url: string, jwt: string) => {
    const client = await settled(await connect(url, { token: jwt, transports, reconnectionDelayMs: 60_000 }));
    await eventually(() => client.socket.io.engine.transport.name === transports.at(-1), {
      withinMs,
      what: 'its transport',
    });
    return client;
  };

  test('is refused for good by a confirmed no', async () => {
    const tenant = someTenant();
    await rig.archive(tenant);
    const jwt = await token({ sub: 'ann', tenant, caps: ALL_CAPS });
    await using client = open(rig.pod(0).url, { token: jwt, transports });
    await eventually(() => client.connectErrors.length > 0, { withinMs, what: 'a refusal' });
    expect(client.connectErrors).toMatchObject([{ data: { code: 'tenant_inactive', retryable: false } }]);
    expect([client.socket.active, client.connects, client.control]).toEqual([false, [], []]);
  });

  test('is told when its tenant is archived, and then disconnected for good', async () => {
    const tenant = someTenant();
    await using client = await come(rig.pod(0).url, await token({ sub: 'ann', tenant, caps: ALL_CAPS }));
    await rig.archive(tenant);
    await staysAway(client, 'tenant_inactive');
  });

  test('is let in while its status is not known, and stays', async () => {
    rig.proxy.blackhole(true);
    try {
      await using client = await come(rig.pod(0).url, await token({ sub: 'ann', caps: ALL_CAPS }));
      expect(await client.publish({ room: 'news', event: 'e' })).toMatchObject({ ok: false, code: 'unavailable' });
      rig.proxy.blackhole(false);
      await eventually(async () => (await client.publish({ room: 'news', event: 'e' })).ok, {
        withinMs,
        what: 'a write',
      });
      expect(client.disconnects).toEqual([]);
    } finally {
      rig.proxy.blackhole(false);
    }
  });

  test('is held and sent away while its device token cannot be verified, and then goes on where it was', async () => {
    const user = `user-${++names}`;
    let deviceToken = '';
    await eventually(
      async () => {
        const body = { user, device: 'screen', replace: true };
        const created = await ask(rig.pod(0), 'POST', '/v1/tenants/default/devices', { body });
        expect(created.status).toBe(200);
        deviceToken = created.body.token;
      },
      { withinMs, what: 'a device token' },
    );
    await using publisher = await connect(rig.pod(1).url, { token: await token({ sub: 'bob', caps: ALL_CAPS }) });
    await using client = await connect(rig.pod(0).url, { token: deviceToken, transports });
    await eventually(() => client.positions.length > 0, { withinMs, what: 'the device to be in' });
    await client.subscribe(`user:${user}`);
    const tell = async (data: string) => (await publisher.publish({ room: `user:${user}`, event: 'e', data })).ok;
    await eventually(() => tell('before'), { withinMs, what: 'a write, after the outage before' });
    await eventually(() => client.received.length > 0, { withinMs, what: 'the first event' });
    await rig.postgres.shutDown('immediate');
    try {
      client.cut();
      await eventually(() => client.control.length > 0, { withinMs, what: 'word of why it must go' });
      expect(client.control[0]).toMatchObject({
        event: 'holdfast:closing',
        args: [{ code: 'unavailable', reconnect: true }],
      });
      // for a stock client that is: it still has its `pid`
      expect(client.connects.at(-1)?.recovered).toBe(true);
      expect(await client.publish({ room: `user:${user}`, event: 'e' })).toMatchObject({ ok: false, retryable: true });
      expect(await tell('meanwhile')).toBe(true);
    } finally {
      await rig.postgres.start();
    }
    await eventually(() => client.received.length > 1, { withinMs: 30_000, what: 'what it missed' });
    expect(client.received.map(({ data }) => data)).toEqual(['before', 'meanwhile']);
    expect([client.connects.at(-1)?.recovered, client.gaps]).toEqual([true, []]);
  });

  test('takes its device over from one on a websocket, and loses it to one', async () => {
    const { jwt } = await someDevice();
    const ofWebsocket = async (index: number) => settled(await connect(rig.pod(index).url, { token: jwt }));
    await using first = await ofWebsocket(0);
    await sleep(SETTLE_MS + 100);
    await using second = await come(rig.pod(1).url, jwt);
    expect(isIn(second)).toBe(true);
    await staysAway(first, 'session_replaced');
    await sleep(SETTLE_MS + 100);
    await using third = await ofWebsocket(0);
    expect(isIn(third)).toBe(true);
    await staysAway(second, 'session_replaced');
  });

  test('proves its life, and keeps its device against one that comes too early', async () => {
    const { jwt } = await someDevice();
    await using holder = await come(rig.pod(0).url, jwt);
    await using next = open(rig.pod(1).url, { token: jwt, transports });
    await staysAway(next, 'session_settle');
    expect([isIn(holder), holder.disconnects]).toEqual([true, []]);
  });

  test('loses its device when its link is dead, within the second that its proof of life takes', async () => {
    const { jwt } = await someDevice();
    await using link = await startTcpProxy(rig.pod(0).port);
    await using holder = await come(`http://127.0.0.1:${link.port}`, jwt);
    link.blackhole(true);
    const from = performance.now();
    await using next = await settled(await connect(rig.pod(1).url, { token: jwt }));
    expect([isIn(next), performance.now() - from < SETTLE_MS + 1000, fateOf(holder)]).toEqual([true, true, undefined]);
  });
});

test('afterwards nobody is left', async () => {
  await eventually(
    async () => {
      for (const pod of rig.pods) {
        const metrics = await pod.metrics();
        for (const gauge of ['holdfast_connections', 'holdfast_device_sessions', 'holdfast_admission_unconfirmed'])
          expect([gauge, metrics.get(gauge)]).toEqual([gauge, 0]);
      }
    },
    { withinMs, what: 'every connection to be gone' },
  );
});
