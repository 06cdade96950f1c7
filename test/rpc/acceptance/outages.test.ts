import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RpcRig } from '../../harness/rpc-rig.js';
import { DEMOTED, expectSuffered, FLUSHED, FULL, READ_ONLY, RESTARTED, STOPPED, suffer } from './outages.js';

// outages.long.test.ts has the failover, longer faults and more rounds

describe.concurrent('every call has one outcome, and nothing that was refused runs later, when', () => {
  it(`${STOPPED.name}, and nobody is declared dead by it`, async () => {
    await using rig = await RpcRig.start();
    expectSuffered(await suffer(rig, STOPPED, 5000));
  });

  it(RESTARTED.name, async () => {
    await using rig = await RpcRig.start({ redis: { aof: 'everysec' } });
    expectSuffered(await suffer(rig, RESTARTED, 1000));
  });
});

describe('each call has one outcome, and nothing that was refused runs later, when', () => {
  let rig: RpcRig;
  beforeAll(async () => {
    rig = await RpcRig.start();
  });
  afterAll(() => rig?.[Symbol.asyncDispose]());

  it.each([FLUSHED, READ_ONLY, FULL, DEMOTED])('$name', async (outage) => {
    expectSuffered(await suffer(rig, outage, 1000));
  });

  it('Redis is killed and comes back without its data', async () => {
    expectSuffered(await suffer(rig, RESTARTED, 1000));
  });

  it('Redis is away when a pod is told to leave, which it does in time', async () => {
    const [pod] = rig.pods;
    rig.redis.pause();
    const from = Date.now();
    expect(await pod?.sigterm()).toEqual({ code: 0, signal: null });
    expect(Date.now() - from).toBeLessThan(10_000);
    rig.redis.resume();
  });
});
