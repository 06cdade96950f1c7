import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { isClean } from '../harness/ledger.js';
import type { Account } from './account.js';
import { Stage } from './stage.js';

describe('what the matrix would not let pass', () => {
  let stage: Stage;
  beforeAll(async () => {
    stage = await Stage.start({ preload: `process.on('SIGUSR2', () => void Promise.reject(new Error('planted')))` });
    await stage.publish(40);
    const { ledger, withheld, twice } = await stage.settle();
    expect([isClean(ledger), withheld, twice]).toEqual([true, [], []]);
  });
  afterAll(() => stage?.[Symbol.asyncDispose]());

  /** The account, had one client got what `spoil` leaves of its deliveries. */
  async function spoilt(spoil: <T>(received: T[]) => void): Promise<Account> {
    const { received } = stage.clients[4] as Stage['clients'][number];
    const whole = [...received];
    spoil(received);
    const account = await stage.settle(100);
    received.splice(0, received.length, ...whole);
    return account;
  }

  it('an event that one client did not get', async () => {
    const { ledger, withheld } = await spoilt((received) => received.splice(5, 1));
    expect([ledger.lost, withheld.length]).toEqual([1, 1]);
  });

  it('an event that one client got twice', async () => {
    const { ledger } = await spoilt((received) => received.splice(5, 0, ...received.slice(5, 6)));
    expect(ledger.doubled).toBe(1);
  });

  it('events that one client got in another order', async () => {
    const { ledger } = await spoilt((received) => received.splice(5, 0, ...received.splice(7, 1)));
    expect(ledger.outOfOrder).toBeGreaterThan(0);
  });

  it('a gap that names nothing that is gone, or that hides what is there', async () => {
    const client = stage.clients[4] as Stage['clients'][number];
    const { position } = client.received[5] as (typeof client.received)[number];
    const gap = { partition: 0, from: position as string, to: position as string, reason: 'trimmed' } as const;
    client.gaps.push(gap);
    const { ledger, withheld } = await spoilt((received) => received.splice(5, 1));
    client.gaps.pop();
    expect([ledger.falseGaps, ledger.lost, withheld.length]).toEqual([1, 1, 1]);
  });

  it('a promise that a pod dropped', async () => {
    const [pod] = stage.pods;
    process.kill(pod?.pid as number, 'SIGUSR2');
    expect(await pod?.exit).toEqual({ code: 1, signal: null });
  });
});
