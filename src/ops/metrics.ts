import { createHistogram } from 'node:perf_hooks';
import {
  collectDefaultMetrics,
  Counter as PromCounter,
  Gauge as PromGauge,
  Histogram as PromHistogram,
  Registry,
} from 'prom-client';
import type { Counter, CounterSpec, GaugeSpec, Histogram, HistogramSpec, Labels, Meter } from '../core/ports.js';
import { OPS_METRICS } from './metric-specs.js';

const PREFIX = 'holdfast_';
/** Below the delays that matter, and cheap: 100 wake-ups a second. */
const DELAY_RESOLUTION_MS = 10;

/** A {@link Meter} that Prometheus can scrape. */
export interface PrometheusMeter extends Meter {
  readonly contentType: string;
  /** The exposition of all that was declared; rejects when a gauge's `read` throws or names an unknown label. */
  text(): Promise<string>;
}

/**
 * A meter with its own registry. Every series of a counter or histogram exists from its declaration on, at 0, so that
 * `rate()` sees the first increment and the number of series of a pod is known at start.
 *
 * A label, or a value of one, that was not declared throws a TypeError.
 */
export function createMeter({ version = 'unknown' }: { readonly version?: string } = {}): PrometheusMeter {
  const registry = new Registry();
  const meter: PrometheusMeter = {
    contentType: registry.contentType,
    text: () => registry.metrics(),
    ...meterOn(registry),
  };
  declareProcess(registry);
  declareEventLoop(meter);
  const build = { name: 'build_info', help: 'Always 1; says the version', labels: { version: [version] } };
  meter.gauge(build, () => [[{ version }, 1]]);
  return meter;
}

type GaugeRead = Parameters<Meter['gauge']>[1];

/** Whoever is asked for a gauge's value: one for each part. */
const GAUGE_READS = new WeakMap<object, GaugeRead[]>();

/** A meter on somebody's registry. Parts that share it share their metrics: counts add up, and so do gauges. */
export function meterOn(registry: Registry): Meter {
  return {
    counter: (spec) => counterOn(registry, spec),
    histogram: (spec) => histogramOn(registry, spec),
    gauge: (spec, read) => gaugeOn(registry, spec, read),
  };
}

function counterOn(registry: Registry, spec: CounterSpec): Counter {
  if (!spec.name.endsWith('_total')) throw new TypeError(`counter ${spec.name}: wants the suffix _total`);
  const series = new Series(spec.name, spec.labels);
  const counter =
    existing<PromCounter>(registry, spec.name, 'inc') ??
    new PromCounter({ ...named(spec), labelNames: series.names, registers: [registry] });
  for (const labels of series.all()) counter.inc(labels, 0);
  return {
    inc: (labels = {}, by = 1) => {
      series.check(labels);
      counter.inc(labels, by);
    },
  };
}

function histogramOn(registry: Registry, spec: HistogramSpec): Histogram {
  const series = new Series(spec.name, spec.labels);
  const known = existing<PromHistogram>(registry, spec.name, 'observe');
  const histogram =
    known ??
    new PromHistogram({
      ...named(spec),
      labelNames: series.names,
      buckets: [...spec.buckets],
      registers: [registry],
    });
  if (!known) for (const labels of series.all()) histogram.zero(labels);
  return {
    observe: (value, labels = {}) => {
      series.check(labels);
      histogram.observe(labels, value);
    },
  };
}

function gaugeOn(registry: Registry, spec: GaugeSpec, read: GaugeRead): void {
  const series = new Series(spec.name, spec.labels);
  const known = existing<PromGauge>(registry, spec.name, 'set');
  const reads = known && GAUGE_READS.get(known);
  if (reads) return void reads.push(read);
  if (known) throw new TypeError(`${PREFIX}${spec.name}: the registry has a metric of that name already`);
  const own = [read];
  const gauge: PromGauge = new PromGauge({
    ...named(spec),
    labelNames: series.names,
    registers: [registry],
    collect() {
      this.reset();
      // reset leaves a 0 behind where there are no labels, and unknown is absent
      if (series.names.length === 0) this.remove();
      for (const one of own) {
        const now = one() ?? [];
        for (const [labels, value] of typeof now === 'number' ? [[{}, now] as const] : now) {
          series.check(labels);
          this.inc(labels, value);
        }
      }
    },
  });
  GAUGE_READS.set(gauge, own);
}

/** What another part has declared on the same registry, which may be another copy of prom-client's. */
function existing<T>(registry: Registry, name: string, method: 'inc' | 'observe' | 'set'): T | undefined {
  const known: unknown = registry.getSingleMetric(PREFIX + name);
  if (known === undefined || known === null) return undefined;
  if (typeof (known as Record<string, unknown>)[method] === 'function') return known as T;
  throw new TypeError(`${PREFIX}${name}: the registry has another kind of metric of that name already`);
}

function named({ name, help }: { readonly name: string; readonly help: string }): { name: string; help: string } {
  return { name: PREFIX + name, help };
}

/** The label combinations that one metric may ever have. */
class Series {
  readonly names: string[];

  constructor(
    private readonly metric: string,
    private readonly labels: Readonly<Record<string, readonly string[]>> = {},
  ) {
    this.names = Object.keys(labels);
  }

  all(): Labels[] {
    let combinations: Labels[] = [{}];
    for (const name of this.names)
      combinations = combinations.flatMap((labels) =>
        (this.labels[name] ?? []).map((value) => ({ ...labels, [name]: value })),
      );
    return combinations;
  }

  check(labels: Labels): void {
    for (const name in labels)
      if (!this.names.includes(name)) throw new TypeError(`${this.metric}: unknown label ${name}`);
    for (const name of this.names) {
      const value = labels[name];
      if (value === undefined || !this.labels[name]?.includes(value))
        throw new TypeError(`${this.metric}: label ${name} can't be ${JSON.stringify(value)}`);
    }
  }
}

/** `process_*` and `nodejs_*`, under the names that dashboards for Node know. */
function declareProcess(registry: Registry): void {
  collectDefaultMetrics({ register: registry });
  // one series per type of handle that happens to be open, and gauges that are called `_total`
  for (const kind of ['handles', 'requests', 'resources'])
    for (const suffix of ['', '_total']) registry.removeSingleMetric(`nodejs_active_${kind}${suffix}`);
  const gc = registry.getSingleMetric('nodejs_gc_duration_seconds');
  if (gc instanceof PromHistogram) for (const kind of ['major', 'minor', 'incremental', 'weakcb']) gc.zero({ kind });
}

/**
 * Not perf_hooks' monitorEventLoopDelay: a scrape that is served before the monitor's own tick resets it and so loses the
 * very block that has just ended. Without a tick since the last scrape nothing was late: 0, so that no series comes and goes.
 */
function declareEventLoop(meter: Meter): void {
  const delays = createHistogram();
  let last = performance.now();
  const record = (isTick: boolean): void => {
    const now = performance.now();
    const lateMs = now - last - DELAY_RESOLUTION_MS;
    if (!isTick && lateMs <= 0) return;
    delays.record(Math.max(1, Math.round(lateMs * 1e6)));
    last = now;
  };
  setInterval(record, DELAY_RESOLUTION_MS, true).unref();
  meter.gauge(OPS_METRICS.eventLoopDelay, () => {
    record(false);
    const stats = [
      [{ stat: 'p50' }, delays.percentile(50) / 1e9],
      [{ stat: 'p99' }, delays.percentile(99) / 1e9],
      [{ stat: 'max' }, delays.max / 1e9],
    ] as const;
    delays.reset();
    return stats;
  });
}
