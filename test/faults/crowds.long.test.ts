import { expect, it } from 'vitest';
import { recordEvidence } from '../harness/evidence.js';
import { neverRead, readOnLate, recoverOldest, returnWhileStopped } from './crowds.js';

const MB = 1_000_000;

it('100 clients that never read hold nobody up and are closed; back again they have everything', () =>
  neverRead({ silent: 100, events: 800, bytes: 20_000 }));

it('100 clients that read nothing while 400 MB are published cost no memory', async () => {
  const figures = await readOnLate({ silent: 100, events: 2000, bytes: 200_000 });
  expect(figures.publishedBytes).toBe(400 * MB);
  expect(figures.keptBytes).toBeLessThan(30 * MB);
  await recordEvidence('crowd-silent', figures);
});

// almost all that a log of the default size keeps
it('200 clients that recover 60 MB each at once, from the oldest position, get all of it in bounded memory', async () => {
  const figures = await recoverOldest({ clients: 200, events: 600, bytes: 100_000 });
  expect(figures.grownBytes).toBeLessThan(250 * MB);
  expect(figures.worstDelayMs).toBeLessThan(500);
  await recordEvidence('crowd-oldest-position', figures);
});

it('2,000 clients that come back while Redis stands still for a minute all recover: ready all the time', async () => {
  const figures = await returnWhileStopped({ clients: 2000, stoppedMs: 60_000, held: 2000 });
  expect(figures.heldTotal).toBeGreaterThan(2000);
  expect(figures.grownBytes).toBeLessThan(200 * MB);
  expect(figures.worstDelayMs).toBeLessThan(1000);
  await recordEvidence('crowd-redis-stopped', figures);
});
