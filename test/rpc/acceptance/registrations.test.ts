import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { printFaults } from '../../harness/rpc-ledger.js';
import { RpcRig } from '../../harness/rpc-rig.js';
import { SCENARIOS } from './registrations.js';

// registrations.long.test.ts has 20 runs of each

let rig: RpcRig;
beforeAll(async () => {
  rig = await RpcRig.start();
});
afterAll(() => rig?.[Symbol.asyncDispose]());

const isKilling = ({ name }: (typeof SCENARIOS)[number]): boolean => name.includes('killed');

describe.concurrent('no call fails with', () => {
  it.each(SCENARIOS.filter((scenario) => !isKilling(scenario)))('$name', async ({ run }) => {
    expect(Object.keys(await run(rig))).toEqual(['ok']);
  });
});

describe('nor does one with', () => {
  it.each(SCENARIOS.filter(isKilling))('$name', async ({ run }) => {
    expect(Object.keys(await run(rig))).toEqual(['ok']);
  });
});

it('each of these calls had one outcome by its deadline, and ran once', async () => {
  expect(printFaults(await rig.book.check())).toBe('');
});
