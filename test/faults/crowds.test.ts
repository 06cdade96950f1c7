import { expect, it } from 'vitest';
import { neverRead, readOnLate, recoverOldest, returnWhileStopped } from './crowds.js';

const MB = 1_000_000;

it.concurrent('clients that never read hold nobody up and are closed; back again they have everything', () =>
  neverRead({ silent: 20, events: 400, bytes: 20_000 }));

it.concurrent('clients that read nothing for long cost no memory, whatever is published; reading on, they are told what is gone', async () => {
  const { publishedBytes, keptBytes } = await readOnLate({ silent: 20, events: 200, bytes: 200_000 });
  expect(publishedBytes).toBe(40 * MB);
  expect(keptBytes).toBeLessThan(15 * MB);
});

it('200 clients that recover from the oldest position at once get all of it, in bounded memory, and the loop turns', async () => {
  const { grownBytes, worstDelayMs, waitedMs } = await recoverOldest({ clients: 200, events: 40, bytes: 50_000 });
  expect(grownBytes).toBeLessThan(200 * MB);
  expect(worstDelayMs - waitedMs).toBeLessThan(1000);
});

it('200 clients that come back while Redis stands still are held or sent away, and all recover: ready all the time', async () => {
  const { heldTotal, grownBytes, worstDelayMs, waitedMs } = await returnWhileStopped({
    clients: 200,
    stoppedMs: 4000,
    held: 100,
  });
  expect(heldTotal).toBeGreaterThan(200);
  expect(grownBytes).toBeLessThan(80 * MB);
  expect(worstDelayMs - waitedMs).toBeLessThan(1000);
});
