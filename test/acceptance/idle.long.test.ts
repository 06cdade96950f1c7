import { expect, it } from 'vitest';
import { recordEvidence } from '../harness/evidence.js';
import { runIdle } from './idle.js';

it('an idle socket behind a balancer with a tunnel time-out of 30 s stays up for 3 minutes, at the defaults', async () => {
  const options = { tunnelTimeout: '30s', idleMs: 180_000 };
  const disconnects = await runIdle(options);
  await recordEvidence('idle-socket', { options, disconnects });
  expect(disconnects).toBe(0);
});
