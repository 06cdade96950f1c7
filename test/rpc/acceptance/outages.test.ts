import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RpcRig } from '../../harness/rpc-rig.js';
import {
  DEMOTED,
  expectSuffered,
  FLUSHED,
  gather,
  type Parties,
  RESTARTED,
  STOPPED,
  suffer,
  WIPED,
} from './outages.js';

// outages.long.test.ts has the failover, a Redis that is full, longer faults and more rounds

describe('every call has one outcome, and nothing that was refused runs later, when', () => {
  let rig: RpcRig;
  let parties: Parties;
  beforeAll(async () => {
    // a grace that is over before the stall is: whoever took its silence for a death would lose what is in work
    rig = await RpcRig.start({ redis: { aof: 'everysec' }, env: { HOLDFAST_RPC_GRACE_MS: '1000' } });
    parties = await gather(rig);
  });
  afterAll(() => rig?.[Symbol.asyncDispose]());

  it(`${STOPPED.name}, and nobody is declared dead by it`, async () => {
    const result = await suffer(rig, parties, STOPPED, 5000);
    expectSuffered(result);
    for (const { daemon } of parties.spread) expect(daemon.notesOf('disconnect')).toEqual([]);
  });

  it.each([FLUSHED, RESTARTED, WIPED, DEMOTED])('$name', async (outage) => {
    expectSuffered(await suffer(rig, parties, outage, 1000));
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
