import { expect, it } from 'vitest';
import { recordEvidence } from '../harness/evidence.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { expectTrueAccounts, fill, type Peak } from './retention.js';
import { adminOf, KEYS, startPod } from './rig.js';

const MB = 1024 * 1024;

it('200,000 small entries, then 5,000 of 200 kB: entries and memory stay within the caps', {
  timeout: 300_000,
}, async () => {
  await using redis = await startRedis();
  await using admin = adminOf(redis.url);
  await using pod = await startPod('a', {
    url: redis.url,
    maxEntries: 100_000,
    maxBytes: 64 * MB,
    trimMs: 500,
    keepMs: 0,
  });
  const peak: Peak = { entries: 0, bytes: 0 };
  await fill(pod, admin, 200_000, 100, peak);
  expect(peak.entries).toBeLessThanOrEqual(200_000);
  await fill(pod, admin, 5000, 200_000, peak);
  expect(peak.bytes).toBeLessThan(2 * 1.2 * 64 * MB);
  await eventually(async () => expect(await admin.memory('USAGE', KEYS.stream)).toBeLessThan(1.3 * 64 * MB));
  expect(await admin.xlen(KEYS.stream)).toBeLessThanOrEqual(100_000);
  await expectTrueAccounts(admin);
  await eventually(() => expect(pod.handled.length + lost(pod.gaps)).toBe(205_000), { withinMs: 60_000 });
  await recordEvidence('retention', {
    small: { entries: 200_000, bytes: 100 },
    large: { entries: 5000, bytes: 200_000 },
    hardCap: { entries: 200_000, bytes: 2 * 64 * MB },
    peak,
    atTheEnd: { entries: await admin.xlen(KEYS.stream), memoryUsage: await admin.memory('USAGE', KEYS.stream) },
    cutUnread: lost(pod.gaps),
  });
});

function lost(gaps: readonly { from: { offset: number }; to: { offset: number } }[]): number {
  return gaps.reduce((sum, { from, to }) => sum + to.offset - from.offset + 1, 0);
}
