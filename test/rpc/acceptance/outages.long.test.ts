import { expect, it } from 'vitest';
import { recordEvidence } from '../../harness/evidence.js';
import { RpcRig } from '../../harness/rpc-rig.js';
import {
  DEMOTED,
  expectSuffered,
  FAILED_OVER,
  FLUSHED,
  FULL,
  gather,
  type Outage,
  type OutageResult,
  READ_ONLY,
  RESTARTED,
  STOPPED,
  suffer,
  WIPED,
} from './outages.js';

const ROUNDS = Number(process.env.LONG_ROUNDS ?? 5);

/** Each outage in these lengths, `ROUNDS` times. */
const CASES: readonly (readonly [Outage, readonly number[]])[] = [
  [STOPPED, [5000, 20_000]],
  [RESTARTED, [1000, 5000]],
  [WIPED, [1000, 5000]],
  [FLUSHED, [0]],
  [READ_ONLY, [1000, 10_000]],
  [FULL, [1000, 10_000]],
  [DEMOTED, [1000, 10_000]],
];

it('every call has one outcome through every outage of Redis, and nothing that was refused runs later', async () => {
  const results: (OutageResult & { readonly forMs: number })[] = [];
  for (const [outage, lengths] of CASES) {
    await using rig = await RpcRig.start({ redis: { aof: 'everysec' }, isAlone: true });
    const parties = await gather(rig);
    for (const forMs of lengths)
      for (let round = 0; round < ROUNDS; round++)
        results.push({ ...(await suffer(rig, parties, outage, forMs)), forMs });
  }
  await recordEvidence('rpc-outages', { results });
  for (const result of results) expectSuffered(result);
});

it('a failover to a replica that is 1.5 s behind leaves every daemon callable', async () => {
  const results: OutageResult[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    await using rig = await RpcRig.start({ proxied: true, isAlone: true });
    results.push(await suffer(rig, await gather(rig), FAILED_OVER, 1500));
  }
  await recordEvidence('rpc-failover', { results });
  for (const { faults, ended, pending, callableMs } of results) {
    expect([faults, ended, pending]).toEqual(['', [], [0, 0, 0]]);
    expect(callableMs).toBeLessThan(10_000);
  }
});
