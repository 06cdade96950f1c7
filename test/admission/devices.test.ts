import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { sleep } from '../../src/core/sleep.js';
import { ask } from '../gateway/fixture.js';
import { connect, open } from '../harness/client.js';
import { eventually } from '../harness/poll.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { comeAndGo } from './comings.js';
import { deviceFight, deviceStorm, fateOf, isIn, settled, someDevice } from './devices.js';
import { AdmissionRig } from './rig.js';

const SETTLE_MS = 1000;

async function startRig(): Promise<AdmissionRig> {
  const env = { HOLDFAST_SETTLE_MS: String(SETTLE_MS), HOLDFAST_ADMISSION_WARMUP_MS: '0' };
  return AdmissionRig.start({ pods: 3, env });
}

describe('one connection per device', () => {
  let rig: AdmissionRig;
  beforeAll(async () => {
    rig = await startRig();
  });
  afterAll(async () => {
    await rig?.[Symbol.asyncDispose]();
  });

  test('a holder whose link is dead is replaced within the second that its proof of life takes', async () => {
    const { jwt } = await someDevice();
    await using link = await startTcpProxy(rig.pod(0).port);
    await using holder = await settled(
      await connect(`http://127.0.0.1:${link.port}`, { token: jwt, reconnectionDelayMs: 60_000 }),
    );
    link.blackhole(true);
    const from = performance.now();
    await using next = await settled(await connect(rig.pod(1).url, { token: jwt }));
    expect([isIn(next), performance.now() - from < SETTLE_MS + 1000, fateOf(holder)]).toEqual([true, true, undefined]);
  });

  test('a client that comes later takes its device over, and the other is told so and stays away', async () => {
    const { jwt } = await someDevice();
    await using first = await settled(await connect(rig.pod(0).url, { token: jwt }));
    await sleep(SETTLE_MS + 100);
    await using second = await settled(await connect(rig.pod(1).url, { token: jwt }));
    await eventually(() => first.disconnects.length > 0, { what: 'the former holder to go' });
    expect(first.control.at(-1)).toMatchObject({
      event: 'holdfast:closing',
      args: [{ code: 'session_replaced', reconnect: false }],
    });
    expect([first.socket.active, isIn(second)]).toEqual([false, true]);
  });

  test('an operator ends a session from any pod', async () => {
    const { user, jwt } = await someDevice();
    await using client = await settled(await connect(rig.pod(0).url, { token: jwt }));
    const ended = await ask(rig.pod(1), 'DELETE', `/v1/sessions/${user}/screen`);
    expect(ended).toMatchObject({ status: 200, body: { ended: true } });
    await eventually(() => fateOf(client) === 'session_replaced', { what: 'word of its end' });
    expect(await ask(rig.pod(1), 'DELETE', `/v1/sessions/${user}/screen`)).toMatchObject({ body: { ended: false } });
  });

  test('two clients that fight for one device take it from each other twice, and then it stays', async () => {
    const { takeovers, offline, sockets } = await deviceFight(rig, 8 * SETTLE_MS, SETTLE_MS + 50);
    expect(takeovers).toBeLessThanOrEqual(2);
    expect({ offline, sockets }).toEqual({ offline: 0, sockets: 1 });
  });

  test('who only says that he is somebody else’s device neither evicts it nor locks it out', async () => {
    const { user, jwt } = await someDevice();
    await using holder = await settled(await connect(rig.pod(0).url, { token: jwt }));
    const own = await token({ sub: `${user}-attacker`, device: 'screen', caps: ALL_CAPS });
    for (let index = 0; index < 40; index++) {
      const auth = { device: 'screen' };
      await using forged = open(rig.pod(index % 3).url, { token: 'forged', auth });
      await eventually(() => forged.connectErrors.length > 0, { what: 'a refusal' });
      if (index % 10 > 0) continue;
      await using proven = await settled(open(rig.pod(1).url, { token: own, auth }));
      expect(isIn(proven)).toBe(true);
    }
    expect(holder.disconnects).toEqual([]);
    await holder.stop();
    await using back = await settled(open(rig.pod(1).url, { token: jwt }));
    expect(isIn(back)).toBe(true);
  });

  test('a storm of one device over three pods leaves one session, online all the time', async () => {
    const storm = { calm: 8, everyMs: SETTLE_MS / 2, burst: 30, burstMs: 300 };
    const { authoritative, asked, offline, fates } = await deviceStorm(rig, storm);
    expect({ authoritative, offline, nothing: fates.nothing ?? 0 }).toEqual({
      authoritative: 1,
      offline: 0,
      nothing: 0,
    });
    expect(asked).toBeGreaterThan(20);
  });

  test('who flaps and is not paired meets a limit, while the cluster warms up too', async () => {
    const { jwt } = await someDevice();
    const fates: (string | undefined)[] = [];
    for (let index = 0; index < 25 && fates.at(-1) === undefined; index++) {
      await using client = await settled(open(rig.pod(index % 3).url, { token: jwt, reconnectionDelayMs: 60_000 }));
      fates.push(fateOf(client));
    }
    expect(fates.at(-1)).toMatch(/^(flap|reconnect)$/);
    expect(fates.length).toBeGreaterThan(5);
  });

  test('whoever is refused, reset, taken over or leaves on purpose: afterwards all gauges are 0', () =>
    comeAndGo(rig, { refused: 50, resets: 20, takeovers: 10, clean: 10 }));

  test('a holder whose pod was killed is replaced at once', async () => {
    const { jwt } = await someDevice();
    await using holder = await settled(await connect(rig.pod(2).url, { token: jwt, reconnectionDelayMs: 60_000 }));
    const proofs = async (outcome: string): Promise<number> =>
      (await rig.pod(0).metrics()).get(`holdfast_session_proofs_total{outcome="${outcome}"}`) ?? 0;
    const [gone, silent] = [await proofs('gone'), await proofs('silent')];
    await rig.pod(2).sigkill();
    await using next = await settled(await connect(rig.pod(0).url, { token: jwt }));
    expect([isIn(next), isIn(holder)]).toEqual([true, false]);
    // nobody waited for a sign of life
    expect([await proofs('gone'), await proofs('silent')]).toEqual([gone + 1, silent]);
    await rig.pod(2).start();
    await rig.pod(2).ready();
  });
});
