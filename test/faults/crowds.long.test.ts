import { expect, it } from 'vitest';
import { recordEvidence } from '../harness/evidence.js';
import { neverRead, readOnLate, recoverOldest, returnWhileStopped } from './crowds.js';

const MB = 1_000_000;

it('crowds: bounded memory, a loop that turns, nothing lost', async () => {
  await neverRead({ silent: 100, events: 800, bytes: 20_000 });

  const readLate = await readOnLate({ silent: 100, events: 2000, bytes: 200_000 });
  expect(readLate.publishedBytes).toBe(400 * MB);
  expect(readLate.keptBytes).toBeLessThan(30 * MB);

  // almost all that a log of the default size keeps
  const oldest = await recoverOldest({ clients: 200, events: 600, bytes: 100_000 });
  expect(oldest.grownBytes).toBeLessThan(250 * MB);
  expect(oldest.worstDelayMs).toBeLessThan(500);

  const stopped = await returnWhileStopped({ clients: 2000, stoppedMs: 60_000, held: 2000 });
  expect(stopped.heldTotal).toBeGreaterThan(2000);
  expect(stopped.grownBytes).toBeLessThan(200 * MB);
  expect(stopped.slowestProbeMs).toBeLessThan(1000);

  await recordEvidence('crowds', { readLate, oldest, stopped });
});
