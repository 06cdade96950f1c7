/** What the relay answers to `rpc-call` and `rpc-attach`. */
export interface CallAnswer {
  readonly ok: boolean;
  readonly result?: unknown;
  readonly error?: string;
  readonly code?: string;
  readonly retryable?: boolean;
  readonly mayHaveRun?: boolean;
}

/** One call. Its params hold its key, which the daemon writes down and returns. */
export interface CallRecord {
  readonly key: string;
  readonly method: string;
  /** Whose method it is. */
  readonly user?: string;
  /** ms since 1970, as every time here. */
  readonly startedAt: number;
  readonly deadline: number;
  /** Runs that are in order; default 1. More where the caller said `idempotent`, or the daemon `dedupe: true`. */
  readonly maxRuns?: number;
  /** Its daemon was paused when the request came, and no relay can take it out of its hands. */
  readonly mayRunLate?: boolean | undefined;
  /** As they came: more than one where the caller attached again. */
  readonly answers: readonly { readonly at: number; readonly answer: CallAnswer }[];
}

/** One run of a handler, from the file that daemons append to. */
export interface Execution {
  readonly key: string;
  readonly attempt: number;
  readonly pid: number;
  readonly at: number;
}

export type CallFault =
  /** No answer by the deadline and its grace. */
  | 'silent'
  /** A first answer after that. */
  | 'late'
  /** Two answers that say different things. */
  | 'contradicted'
  /** Somebody else's result, or one of a handler that never ran. */
  | 'foreign'
  /** More runs than are in order. */
  | 'ranAgain'
  /** Ran, though its caller was told that it had not and would not. */
  | 'denied'
  /** Began after its caller had been told of a failure. */
  | 'ranLate'
  /** A run of no call. */
  | 'stray'
  /** An ack that came twice. */
  | 'doubled';

export interface CallLedger {
  readonly calls: number;
  readonly ok: number;
  /** Answers that were no result, by code. */
  readonly failed: Readonly<Record<string, number>>;
  readonly executions: number;
  readonly faults: number;
  /** The first few of each fault, as text. */
  readonly details: Readonly<Partial<Record<CallFault, readonly string[]>>>;
}

/** How long after its deadline an outcome may come. */
export const GRACE_MS = 500;
/** Between two processes of one machine, and for an answer that crosses a request on its way. */
export const CROSSING_MS = 150;
const MAX_DETAILS = 5;

/** Compares what callers were told with what ran. Pure. */
export function checkCalls(
  calls: readonly CallRecord[],
  executions: readonly Execution[],
  now: number,
  graceMs = GRACE_MS,
  crossingMs = CROSSING_MS,
): CallLedger {
  const details: Partial<Record<CallFault, string[]>> = {};
  let faults = 0;
  const add = (fault: CallFault, text: string): void => {
    faults++;
    const found = details[fault] ?? [];
    details[fault] = found;
    if (found.length < MAX_DETAILS) found.push(text);
  };
  const runsOf = new Map<string, Execution[]>();
  for (const execution of executions) runsOf.set(execution.key, [...(runsOf.get(execution.key) ?? []), execution]);
  const failed: Record<string, number> = {};
  let ok = 0;
  for (const call of calls) {
    const runs = runsOf.get(call.key) ?? [];
    runsOf.delete(call.key);
    const first = call.answers[0];
    if (first?.answer.ok) ok++;
    else if (first) failed[first.answer.code ?? 'none'] = (failed[first.answer.code ?? 'none'] ?? 0) + 1;
    for (const [fault, what] of faultsOf(call, runs, now, graceMs, crossingMs))
      add(fault, `${call.key} (${call.method}): ${what}`);
  }
  for (const [key, runs] of runsOf) add('stray', `${key} ran ${runs.length} times`);
  return { calls: calls.length, ok, failed, executions: executions.length, faults, details };
}

/** Nothing where nothing was found. */
export function printFaults({ faults, details }: CallLedger): string {
  return faults === 0 ? '' : `${faults} faults: ${JSON.stringify(details, null, 1)}`;
}

function* faultsOf(
  call: CallRecord,
  runs: readonly Execution[],
  now: number,
  graceMs: number,
  crossingMs: number,
): Generator<[CallFault, string]> {
  const { key, deadline, answers, maxRuns = 1 } = call;
  const [first] = answers;
  const due = deadline + graceMs;
  if (!first && now > due) yield ['silent', `no answer ${now - deadline} ms after its deadline`];
  if (first && first.at > due) yield ['late', `${JSON.stringify(first.answer)} ${first.at - deadline} ms too late`];
  for (const { answer } of answers)
    if (first && !isSame(answer, first.answer))
      yield ['contradicted', `${JSON.stringify(first.answer)}, then ${JSON.stringify(answer)}`];
  if (runs.length > maxRuns)
    yield ['ranAgain', `${runs.length} runs: ${runs.map(({ pid, attempt }) => `${pid} as ${attempt}`).join(', ')}`];
  if (!first) return;
  const { at, answer } = first;
  if (answer.ok) {
    if (keyOf(answer.result) !== key || runs.length === 0)
      yield ['foreign', `${JSON.stringify(answer).slice(0, 200)} after ${runs.length} runs`];
    return;
  }
  if (answer.mayHaveRun === false && runs.length > 0) yield ['denied', `${answer.code}, and ${runs.length} runs`];
  if (call.mayRunLate) return;
  const late = runs.find((run) => run.at > at + crossingMs);
  if (late) yield ['ranLate', `${late.at - at} ms after ${JSON.stringify(answer)}`];
}

function isSame(one: CallAnswer, other: CallAnswer): boolean {
  return one.ok === other.ok && one.code === other.code && keyOf(one.result) === keyOf(other.result);
}

function keyOf(result: unknown): unknown {
  return (result as { key?: unknown } | null | undefined)?.key;
}
