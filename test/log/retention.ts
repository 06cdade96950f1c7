import type { Redis } from 'ioredis';
import { expect } from 'vitest';
import { KEYS, type TestPod } from './rig.js';

/** Most appends that wait at once. */
const WINDOW = 400;

export interface Peak {
  entries: number;
  bytes: number;
}

/** Appends `count` entries of about `bytes` each and samples what Redis holds meanwhile. */
export async function fill(pod: TestPod, admin: Redis, count: number, bytes: number, peak: Peak): Promise<void> {
  const payload = JSON.stringify(['e', 'x'.repeat(bytes)]);
  for (let done = 0; done < count; done += WINDOW) {
    // large ones in smaller portions, or too many bytes wait
    const portion = Math.min(WINDOW, count - done);
    const step = bytes > 10_000 ? 40 : portion;
    for (let at = 0; at < portion; at += step)
      await Promise.all(Array.from({ length: Math.min(step, portion - at) }, () => pod.append('f', payload)));
    peak.entries = Math.max(peak.entries, await admin.xlen(KEYS.stream));
    peak.bytes = Math.max(peak.bytes, Number(await admin.memory('USAGE', KEYS.stream, 'SAMPLES', 0)));
  }
}

/** What the meta counts is what the stream holds, to within what the estimate may be off. */
export async function expectTrueAccounts(admin: Redis): Promise<void> {
  const [first, offset, bytes] = (await admin.hmget(KEYS.meta, 'first', 'offset', 'bytes')).map(Number);
  const [entries, used] = [
    await admin.xlen(KEYS.stream),
    Number(await admin.memory('USAGE', KEYS.stream, 'SAMPLES', 0)),
  ];
  expect((offset as number) - (first as number) + 1).toBe(entries);
  expect(used / (bytes as number)).toBeGreaterThan(0.5);
  expect(used / (bytes as number)).toBeLessThan(1.5);
}
