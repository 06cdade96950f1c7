import type { DoorName } from './admission-side.js';
import type { Contestant } from './figures.js';
import type { GroupSideName } from './group-side.js';
import type { CallSideName } from './rpc-side.js';
import type { SideName } from './side.js';

export interface Settings {
  /** Of each measurement, sides taking turns. */
  readonly rounds: number;
  /** What every number of events and sockets is multiplied by. */
  readonly scale: number;
  readonly sides: readonly SideName[];
  readonly callSides: readonly CallSideName[];
  readonly doors: readonly DoorName[];
  readonly groupSides: readonly GroupSideName[];
  readonly only: readonly string[] | undefined;
  /** `delivery:1000`, `publish:burst` …: the run whose pod writes a CPU profile; nothing else runs. */
  readonly profile: string | undefined;
  /** Puts each table whose parts all ran into its page, and its figures into docs/evidence/. */
  readonly isWriting: boolean;
}

const SIDES: readonly SideName[] = ['holdfast', 'streams', 'pubsub', 'floor'];
/** Of its own accord only: it does more for each event than an adapter, and its events come over HTTP. */
const OPTIONAL_SIDES: readonly SideName[] = ['relay'];
const CALL_SIDES: readonly CallSideName[] = ['holdfast', 'bullmq', 'emitWithAck', 'fetchSockets'];
const GROUP_SIDES: readonly GroupSideName[] = ['holdfast', 'byHand', 'bullmq'];
const DOORS: readonly DoorName[] = ['bare', 'redis', 'postgres', 'devices'];

/** BENCH_ONLY, BENCH_ROUNDS, BENCH_QUICK, BENCH_SIDES, BENCH_PROFILE, BENCH_WRITE: docs/benchmarks.md */
export function readSettings(env: Readonly<Record<string, string | undefined>>, parts: readonly string[]): Settings {
  const isQuick = env.BENCH_QUICK === '1';
  const profile = env.BENCH_PROFILE || undefined;
  const rounds = Number(env.BENCH_ROUNDS ?? (isQuick || profile ? 1 : 3));
  if (!Number.isInteger(rounds) || rounds < 1) throw new Error('BENCH_ROUNDS: wants a whole number above 0');
  const sides = names<Contestant>('BENCH_SIDES', env.BENCH_SIDES, [
    ...SIDES,
    ...OPTIONAL_SIDES,
    ...CALL_SIDES,
    ...DOORS,
    ...GROUP_SIDES,
  ]);
  const among = <Name extends Contestant>(known: readonly Name[]) => known.filter((name) => sides?.includes(name));
  const settings = {
    rounds,
    scale: isQuick ? 0.4 : 1,
    sides: sides ? among([...SIDES, ...OPTIONAL_SIDES]) : SIDES,
    callSides: sides ? among(CALL_SIDES) : CALL_SIDES,
    doors: sides ? among(DOORS) : DOORS,
    groupSides: sides ? among(GROUP_SIDES) : GROUP_SIDES,
    only: names('BENCH_ONLY', profile ? partOf(profile) : env.BENCH_ONLY, parts),
    profile,
    isWriting: env.BENCH_WRITE === '1',
  };
  if (settings.isWriting && (isQuick || profile || sides || rounds < 3))
    throw new Error('BENCH_WRITE: wants full runs of all sides, at least 3 rounds');
  return settings;
}

/** Publishing is measured by what is delivered. */
const partOf = (run: string): string => (run.split(':')[0] as string).replace('publish', 'delivery');

function names<Name extends string>(variable: string, text: string | undefined, known: readonly Name[]) {
  if (!text) return undefined;
  return text.split(',').map((name) => {
    if (!known.includes(name as Name)) throw new Error(`${variable}: ${name} is none of ${known.join(', ')}`);
    return name as Name;
  });
}
