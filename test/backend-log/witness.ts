import type {
  GroupEntry,
  GroupGap,
  GroupReader,
  GroupStart,
  HandlerContext,
  Log,
  RunOptions,
} from '../../src/backend-log/index.js';

export interface Seen {
  readonly n: number;
  readonly partition: number;
  readonly offset: number;
  readonly deliveries: number;
  readonly isRedriven: boolean;
  /** When its handler began, ms since 1970. */
  readonly at: number;
}

export interface WitnessOptions extends RunOptions {
  readonly from?: GroupStart;
  readonly handler?: (entry: GroupEntry, context: HandlerContext) => unknown;
}

/** A member in this process, and what it was handed and told. Data of entries has a number `n`. */
export class Witness implements AsyncDisposable {
  readonly seen: Seen[] = [];
  readonly gaps: GroupGap[] = [];
  readonly reader: GroupReader;

  private constructor(log: Log, group: string, { from = 'earliest', handler = () => {}, ...options }: WitnessOptions) {
    this.reader = log.group(group, { from }).run(
      (entry, context) => {
        this.#see(entry);
        return handler(entry, context);
      },
      { leaseMs: 1000, backoffMs: 20, maxBackoffMs: 200, onGap: (gap) => this.gaps.push(gap), ...options },
    );
  }

  static async start(log: Log, group: string, options: WitnessOptions = {}): Promise<Witness> {
    const witness = new Witness(log, group, options);
    await witness.reader.ready;
    return witness;
  }

  get numbers(): number[] {
    return this.seen.map(({ n }) => n);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.reader.stop();
  }

  #see(entry: GroupEntry): void {
    const { n } = entry.data as { n: number };
    const { partition, offset, deliveries, isRedriven } = entry;
    this.seen.push({ n, partition, offset, deliveries, isRedriven, at: Date.now() });
  }
}

export interface Put {
  readonly n: number;
  readonly position: string;
  readonly partition: number;
  readonly offset: number;
}

/** `from` to `to - 1`. */
export function range(from: number, to: number): number[] {
  return Array.from({ length: Math.max(0, to - from) }, (_, index) => from + index);
}

export async function put(log: Log, numbers: readonly number[], keyOf = (_n: number): string => 'k'): Promise<Put[]> {
  return Promise.all(
    numbers.map(async (n) => {
      const { position } = await log.append({ event: 'e', data: { n, key: keyOf(n) }, key: keyOf(n) });
      const [, partition, id] = position.split(':') as [string, string, string];
      return { n, position, partition: Number(partition), offset: Number(id.split('-')[1]) };
    }),
  );
}

/** Entries of one epoch that nobody was handed, and no gap told of. */
export function unexplained(all: readonly Put[], witnesses: readonly Witness[]): Put[] {
  const seen = new Set(witnesses.flatMap(({ numbers }) => numbers));
  const gaps = witnesses.flatMap((witness) => witness.gaps);
  return all.filter(
    ({ n, partition, offset }) =>
      !seen.has(n) &&
      !gaps.some(({ partition: of, from = 1, to = 0 }) => of === partition && from <= offset && offset <= to),
  );
}
