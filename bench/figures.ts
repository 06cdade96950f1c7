import type { DoorName } from './admission-side.js';
import type { GroupSideName } from './group-side.js';
import type { CallSideName } from './rpc-side.js';
import type { SideName } from './side.js';
import type { Worker } from './worker.js';

/** What our value divided by the peer's should be; or a limit of our value itself, whatever theirs. */
export type Aim = { readonly atMost: number } | { readonly atLeast: number } | { readonly limit: number };

/** Who has a column. */
export type Contestant = SideName | CallSideName | DoorName | GroupSideName;

/** One row of the table. */
export interface Figure {
  readonly title: string;
  readonly unit: string;
  /** Beside whom we are measured; default: the streams adapter. */
  readonly peer?: Contestant;
  /** Whose value is ours; default: the adapter's, or the relay's in its place. */
  readonly own?: Contestant;
  readonly aim?: Aim;
  /** For the evidence and whoever runs it; the README goes without. */
  readonly isDetail?: boolean;
  /** One value per round. */
  readonly samples: Partial<Record<Contestant, readonly number[]>>;
}

/** A title and a unit, with one value per side and round to come. */
export type Spec = Omit<Figure, 'samples'>;

export interface Part {
  readonly name: string;
  run(bench: Bench): Promise<readonly Figure[]>;
}

export interface Bench {
  readonly rounds: number;
  readonly sides: readonly SideName[];
  readonly callSides: readonly CallSideName[];
  readonly doors: readonly DoorName[];
  readonly groupSides: readonly GroupSideName[];
  /** A number of events or sockets of a full run, as this run has it. */
  scaled(count: number): number;
  /** True if a run of the part is wanted: all are, unless one of them is profiled. */
  wants(run: string): boolean;
  /** Does the work, with a CPU profile of the process if this run is the one to be profiled. */
  profiled<Result>(run: string, process: Worker, work: () => Promise<Result>): Promise<Result>;
}

export const median = (values: readonly number[]): number => {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] as number;
  return sorted.length % 2 ? upper : ((sorted[middle - 1] as number) + upper) / 2;
};

interface Named {
  readonly name: Contestant;
}

/** What one side was measured at in one round, by the names of some specs. */
export interface Sample<Name extends string, Side extends Named> {
  readonly side: Side;
  readonly values: Readonly<Record<Name, number>>;
}

/** Rounds in which the sides take turns, so that all see the same machine, each round beginning with another one. */
export async function interleave<Name extends string, Side extends Named>(
  sides: readonly Side[],
  rounds: number,
  measure: (side: Side) => Promise<Readonly<Record<Name, number>>>,
): Promise<Sample<Name, Side>[]> {
  const taken: Sample<Name, Side>[] = [];
  for (let round = 0; round < rounds; round++) {
    const turn = round % sides.length;
    for (const side of [...sides.slice(turn), ...sides.slice(0, turn)])
      taken.push({ side, values: await measure(side) });
  }
  return taken;
}

export function figuresOf<Name extends string>(
  specs: Readonly<Record<Name, Spec>>,
  taken: readonly Sample<Name, Named>[],
): Figure[] {
  return Object.entries<Spec>(specs).map(([key, spec]) => {
    const samples: Partial<Record<Contestant, number[]>> = {};
    for (const { side, values } of taken) samples[side.name] = [...(samples[side.name] ?? []), values[key as Name]];
    return { ...spec, samples };
  });
}

const ours = ({ samples, own }: Figure): number | undefined => {
  const values = own ? samples[own] : (samples.holdfast ?? samples.relay);
  return values && median(values);
};

export function ratio(figure: Figure): number | undefined {
  const [value, theirs] = [ours(figure), figure.samples[figure.peer ?? 'streams']];
  return value !== undefined && theirs ? value / median(theirs) : undefined;
}

/** `undefined` where there is no aim, or nothing to compare. */
export function isMet(figure: Figure): boolean | undefined {
  const { aim } = figure;
  if (!aim) return undefined;
  const got = 'limit' in aim ? ours(figure) : ratio(figure);
  if (got === undefined) return undefined;
  return 'atLeast' in aim ? got >= aim.atLeast : got <= ('limit' in aim ? aim.limit : aim.atMost);
}
