import type { Meter } from '../../src/core/ports.js';

/** A meter whose counters can be read. */
export class Counts implements Meter {
  readonly #values = new Map<string, number>();

  /** `name`, or `name{value}` for one value of its label. */
  of(name: string): number {
    return this.#values.get(name) ?? 0;
  }

  counter({ name }: { name: string }) {
    return {
      inc: (labels: Readonly<Record<string, string>> = {}, by = 1): void => {
        for (const key of [name, ...Object.values(labels).map((value) => `${name}{${value}}`)])
          this.#values.set(key, this.of(key) + by);
      },
    };
  }

  histogram() {
    return { observe: (): void => {} };
  }

  gauge(): void {}
}
