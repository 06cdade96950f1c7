/** The few methods of a logger that rooms call; pino has this shape. */
export interface Logger {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

export type Labels = Readonly<Record<string, string>>;

export interface Counter {
  inc(labels?: Labels, by?: number): void;
}

export interface Histogram {
  observe(value: number, labels?: Labels): void;
}

export interface CounterSpec {
  /** Without the prefix `holdfast_`, with the suffix `_total`. */
  readonly name: string;
  readonly help: string;
  /** Every value that each label can take: the number of series is known at start. */
  readonly labels?: Readonly<Record<string, readonly string[]>>;
}

export interface GaugeSpec {
  readonly name: string;
  readonly help: string;
  readonly labels?: Readonly<Record<string, readonly string[]>>;
}

export interface HistogramSpec {
  readonly name: string;
  readonly help: string;
  readonly buckets: readonly number[];
  readonly labels?: Readonly<Record<string, readonly string[]>>;
}

/** Where rooms declare what they count. Gauges are read at scrape time; `undefined` = unknown, and absent. */
export interface Meter {
  counter(spec: CounterSpec): Counter;
  histogram(spec: HistogramSpec): Histogram;
  gauge(spec: GaugeSpec, read: () => number | undefined | readonly (readonly [Labels, number])[]): void;
}

const nothing = (): void => {};

/** For whoever uses a room without a log. */
export const silentLogger: Logger = { debug: nothing, info: nothing, warn: nothing, error: nothing };

/** For whoever uses a room without metrics. */
export const silentMeter: Meter = {
  counter: () => ({ inc: nothing }),
  histogram: () => ({ observe: nothing }),
  gauge: nothing,
};
