import { setTimeout as wait } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { createMeter, DependencyCheck } from '../../src/ops/index.js';

test('a hundred who ask at once share one check, and its result for a second', async () => {
  let runs = 0;
  let now = 1_000_000;
  const meter = createMeter();
  const ping = async (): Promise<void> => {
    runs++;
    await wait(20);
  };
  const check = new DependencyCheck({ checks: { redis: ping }, meter, now: () => now });
  const reports = await Promise.all(Array.from({ length: 100 }, () => check.read()));
  expect(runs).toBe(1);
  expect(new Set(reports.map((report) => report.redis)).size).toBe(1);
  expect(reports[0]?.redis).toMatchObject({ status: 'up', checkedAt: new Date(now).toISOString() });
  now += 999;
  await check.read();
  expect(runs).toBe(1);
  now += 1;
  await check.read();
  expect(runs).toBe(2);
  const text = await meter.text();
  expect(text).toContain('holdfast_dependency_checks_total{dependency="redis",outcome="up"} 2');
  expect(text).toContain('holdfast_dependency_check_duration_seconds_count{dependency="redis"} 2');
});

test('a check that hangs is answered within a second, and no second one is sent while it hangs', async () => {
  let runs = 0;
  let now = 0;
  let answer = (): void => {};
  const hanging = (): Promise<void> => {
    runs++;
    return new Promise((resolve) => {
      answer = resolve;
    });
  };
  const meter = createMeter();
  const check = new DependencyCheck({ checks: { redis: hanging }, meter, now: () => now });
  const startedAt = performance.now();
  const reports = await Promise.all(Array.from({ length: 100 }, () => check.read()));
  expect(performance.now() - startedAt).toBeLessThan(1000);
  expect(reports.every((report) => report.redis?.status === 'down')).toBe(true);
  expect(reports[0]?.redis?.error).toMatch(/no answer/);
  now += 2000;
  const later = check.read();
  answer();
  expect((await later).redis?.status).toBe('up');
  expect(runs).toBe(1);
  expect(await meter.text()).toContain('holdfast_dependency_checks_total{dependency="redis",outcome="timeout"} 1');
});

test('a failed check says why, without the password', async () => {
  const failing = async (): Promise<never> => {
    throw new Error('connect ECONNREFUSED redis://app:hunter2@10.0.0.1:6379');
  };
  const check = new DependencyCheck({ checks: { redis: failing }, meter: createMeter() });
  expect((await check.read()).redis).toMatchObject({
    status: 'down',
    error: 'connect ECONNREFUSED redis://***@10.0.0.1:6379',
  });
});

test('a check that throws before it waits is down too', async () => {
  const broken = (): Promise<void> => {
    throw new Error('closed');
  };
  const check = new DependencyCheck({ checks: { redis: broken }, meter: createMeter() });
  expect((await check.read()).redis).toMatchObject({ status: 'down', error: 'closed' });
});
