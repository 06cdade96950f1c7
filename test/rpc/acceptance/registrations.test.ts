import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RpcRig } from '../../harness/rpc-rig.js';
import { SCENARIOS } from './registrations.js';

describe.concurrent('no call fails with', () => {
  let rig: RpcRig;
  beforeAll(async () => {
    rig = await RpcRig.start();
  });
  afterAll(() => rig?.[Symbol.asyncDispose]());

  const killing = SCENARIOS.filter(({ name }) => name.includes('killed'));
  it.each(SCENARIOS.filter((scenario) => !killing.includes(scenario)))('$name', async ({ run }) => {
    expect(Object.keys(await run(rig))).toEqual(['ok']);
  });
});

describe('not a call fails with', () => {
  it.each(SCENARIOS.filter(({ name }) => name.includes('killed')))('$name', async ({ run }) => {
    await using rig = await RpcRig.start();
    expect(Object.keys(await run(rig))).toEqual(['ok']);
    expect((await rig.book.check()).details).toEqual({});
  });
});
