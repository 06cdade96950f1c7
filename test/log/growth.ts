import type { Redis } from 'ioredis';
import { eventually } from '../harness/poll.js';
import { KEYS } from './rig.js';

/** Of the newest entry that the log holds; 0 = there is none. */
export async function newestOffset(admin: Redis): Promise<number> {
  const [newest] = await admin.xrevrange(KEYS.stream, '+', '-', 'COUNT', 1);
  return Number(newest?.[0].split('-')[1] ?? 0);
}

/** Resolves when the log has `by` entries more than at the call: whatever the machine makes of a writer's pace. */
export async function growth(admin: Redis, by = 1): Promise<void> {
  const due = (await newestOffset(admin)) + by;
  await eventually(async () => (await newestOffset(admin)) >= due, { withinMs: 15_000, what: 'the log to grow' });
}
