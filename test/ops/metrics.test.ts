import { expect, test } from 'vitest';
import { createMeter, type PrometheusMeter } from '../../src/ops/index.js';

async function series(meter: PrometheusMeter): Promise<Map<string, number>> {
  const lines = (await meter.text()).split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  return new Map(
    lines.map((line) => {
      const match = /^([a-zA-Z_:][\w:]*(?:\{(?:[a-z_A-Z]\w*="[^"]*",?)*\})?) (\S+)$/.exec(line);
      if (!match) throw new Error(`no exposition line: ${line}`);
      return [match[1] as string, Number(match[2])];
    }),
  );
}

test('every series of a counter is there, at 0, before anything is counted', async () => {
  const meter = createMeter();
  const counter = meter.counter({
    name: 'calls_total',
    help: 'h',
    labels: { outcome: ['ok', 'failed'], kind: ['a', 'b'] },
  });
  meter.counter({ name: 'plain_total', help: 'h' });
  counter.inc({ outcome: 'ok', kind: 'b' }, 3);
  const found = await series(meter);
  expect(found.get('holdfast_calls_total{outcome="ok",kind="b"}')).toBe(3);
  expect(found.get('holdfast_calls_total{outcome="failed",kind="a"}')).toBe(0);
  expect(found.get('holdfast_plain_total')).toBe(0);
});

test('a label or a value that was not declared throws', () => {
  const meter = createMeter();
  const counter = meter.counter({ name: 'calls_total', help: 'h', labels: { outcome: ['ok'] } });
  const histogram = meter.histogram({ name: 'call_seconds', help: 'h', buckets: [1], labels: { kind: ['a'] } });
  expect(() => counter.inc({ outcome: 'other' })).toThrow(TypeError);
  expect(() => counter.inc({ user: 'u1', outcome: 'ok' })).toThrow(TypeError);
  expect(() => counter.inc()).toThrow(TypeError);
  expect(() => histogram.observe(1, { kind: 'b' })).toThrow(TypeError);
  expect(() => meter.counter({ name: 'calls', help: 'h' })).toThrow(TypeError);
});

test('a gauge is read at the scrape, and absent while it is unknown', async () => {
  const meter = createMeter();
  let depth: number | undefined;
  meter.gauge({ name: 'depth', help: 'h' }, () => depth);
  meter.gauge({ name: 'groups', help: 'h', labels: { state: ['live', 'idle'] } }, () =>
    depth === undefined ? undefined : [[{ state: 'idle' }, depth]],
  );
  expect((await series(meter)).has('holdfast_depth')).toBe(false);
  depth = 7;
  const found = await series(meter);
  expect(found.get('holdfast_depth')).toBe(7);
  expect(found.get('holdfast_groups{state="idle"}')).toBe(7);
  expect(found.has('holdfast_groups{state="live"}')).toBe(false);
  depth = undefined;
  expect([...(await series(meter)).keys()].filter((name) => /depth|groups/.test(name))).toEqual([]);
});

test('the version, the process and the delay of the event loop are exported', async () => {
  const meter = createMeter({ version: '1.2.3' });
  const found = await series(meter);
  expect(found.has('holdfast_event_loop_delay_seconds{stat="max"}')).toBe(true);
  expect(found.get('holdfast_build_info{version="1.2.3"}')).toBe(1);
  expect(found.get('process_resident_memory_bytes')).toBeGreaterThan(1e6);
});

test('a blocked event loop shows in one scrape and not in the next', async () => {
  const meter = createMeter();
  const max = async (): Promise<number> =>
    (await series(meter)).get('holdfast_event_loop_delay_seconds{stat="max"}') ?? -1;
  expect(await max()).toBeGreaterThanOrEqual(0);
  const until = performance.now() + 300;
  while (performance.now() < until);
  expect(await max()).toBeGreaterThan(0.2);
  const next = await max();
  expect(next).toBeGreaterThanOrEqual(0);
  expect(next).toBeLessThan(0.2);
});

test('the number of series stays the same, whatever is counted', async () => {
  const meter = createMeter({ version: '1' });
  const outcomes = ['ok', 'failed'];
  const counter = meter.counter({ name: 'calls_total', help: 'h', labels: { outcome: outcomes } });
  const histogram = meter.histogram({
    name: 'call_seconds',
    help: 'h',
    buckets: [0.1, 1],
    labels: { outcome: outcomes },
  });
  meter.gauge({ name: 'depth', help: 'h' }, () => 1);
  const names = async (): Promise<string[]> => [...(await series(meter)).keys()].sort();
  const atStart = await names();
  for (let i = 0; i < 1000; i++) {
    counter.inc({ outcome: outcomes[i % 2] as string });
    histogram.observe(i / 100, { outcome: outcomes[i % 2] as string });
  }
  // handles, requests and a collection of the heap: what Node's own metrics tell apart by type
  const timers = Array.from({ length: 10 }, () => setTimeout(() => {}, 10_000));
  const garbage = Array.from({ length: 200_000 }, (_, i) => ({ i }));
  expect(garbage).toHaveLength(200_000);
  expect(await names()).toEqual(atStart);
  for (const timer of timers) clearTimeout(timer);
});
