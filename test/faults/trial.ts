import { expect } from 'vitest';
import { sleep } from '../../src/core/sleep.js';
import { isClean, type Ledger, printLedger } from '../harness/ledger.js';
import { eventually } from '../harness/poll.js';
import type { Account } from './account.js';
import type { Heard } from './publishers.js';
import type { Expectations, Group, Scenario } from './scenario.js';
import { KEYS, Stage } from './stage.js';

/** A gap is told within this time of the fault's end. */
const TOLD_MS = 5000;
const LIVE_AGAIN_MS = 8000;
/** The promised 2 s, and what a busy machine makes of them. */
const ANSWER_MS = 3500;

type Series = ReadonlyMap<string, number>;

export interface Outcome {
  readonly name: string;
  readonly lastedMs: number;
  /** From the fault's end until the last client was told. */
  readonly gapToldMs: number | undefined;
  readonly liveAgainMs: number;
  readonly slowestAnswerMs: number;
  readonly heardUnavailable: number;
  readonly heardMayHaveHappened: number;
  /** Accepted, and gone before it reached the client that missed most. */
  readonly lostUnread: number;
  /** Since the start of the stage. */
  readonly ledger: Ledger;
}

/** How far everything had come when a scenario began. */
interface Mark {
  readonly startedAt: number;
  readonly gaps: readonly number[];
  readonly disconnects: readonly number[];
  readonly probes: number;
  readonly pids: readonly number[];
  readonly series: readonly Series[];
  readonly lostPerClient: readonly number[];
}

/** Runs the scenarios of a group, one after another, on one stage: each meets what those before it have left. */
export class Trial implements AsyncDisposable {
  #stage: Stage | undefined;
  #account: Account | undefined;

  constructor(
    private readonly group: Group,
    private readonly form: 'short' | 'long',
  ) {}

  /** The stage, if it does not stand yet: a scenario does it too. */
  async start(): Promise<Stage> {
    this.#stage ??= await Stage.start(this.group.stage);
    return this.#stage;
  }

  /** Checks all that the matrix promises. After a failure the next scenario gets a new stage. */
  async run(scenario: Scenario): Promise<Outcome> {
    const stage = await this.start();
    try {
      return await this.#run(stage, scenario);
    } catch (error) {
      const lines = stage.pods.flatMap(({ logs }) => logs.slice(-12));
      await this.#drop();
      throw new Error(`${(error as Error).message}\n${lines.join('\n')}`, { cause: error });
    }
  }

  /** The pods leave when told to, with exit code 0: nothing of it all has broken them. */
  async end(): Promise<void> {
    const stage = this.#stage;
    if (!stage) return;
    expect(await stage.leave(), stage.pods.flatMap(({ logs }) => logs.slice(-10)).join('\n')).toEqual([0, 0]);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#drop();
  }

  async #drop(): Promise<void> {
    await this.#stage?.[Symbol.asyncDispose]();
    this.#stage = undefined;
    this.#account = undefined;
  }

  async #run(stage: Stage, { name, inject, heal, lastsMs, perSecond = 40, expects }: Scenario): Promise<Outcome> {
    const publishers = await stage.publish(perSecond);
    const mark = await this.#mark(stage);
    await inject(stage, this.form);
    await sleep(lastsMs?.[this.form] ?? 0);
    await heal?.(stage);
    const endedAt = Date.now();

    let gapToldMs: number | undefined;
    if (expects.epoch) {
      await eventually(() => stage.clients.every(({ gaps }, n) => gaps.length > (mark.gaps[n] ?? 0)), {
        withinMs: TOLD_MS,
        what: 'the gap at every client',
      });
      gapToldMs = Date.now() - endedAt;
    }
    await stage.liveAgain(endedAt, LIVE_AGAIN_MS);
    const liveAgainMs = Date.now() - endedAt;
    const account = await stage.settle();
    const { ledger } = account;
    this.#account = account;
    const lost = account.lostPerClient.map((count, n) => count - (mark.lostPerClient[n] ?? 0));

    expect(isClean(ledger), await report(stage, ledger)).toBe(true);
    expect(ledger.accepted, printLedger(ledger)).toBe(ledger.offered);
    expect(account.withheld).toEqual([]);
    expect(account.twice).toEqual([]);
    if (!expects.disconnects)
      expect(stage.clients.flatMap(({ disconnects }, n) => disconnects.slice(mark.disconnects[n]))).toEqual([]);
    await checkGaps(stage, expects, mark, lost);
    const heard = publishers.heard.filter(({ at, tookMs }) => at + tookMs >= mark.startedAt);
    checkHeard(heard, expects);
    checkPods(stage, expects, mark);
    return {
      name,
      lastedMs: endedAt - mark.startedAt,
      gapToldMs,
      liveAgainMs,
      slowestAnswerMs: Math.max(...heard.map(({ tookMs }) => tookMs)),
      heardUnavailable: heard.filter(({ code }) => code === 'unavailable').length,
      heardMayHaveHappened: heard.filter(({ mayHaveHappened }) => mayHaveHappened).length,
      lostUnread: Math.max(...lost),
      ledger,
    };
  }

  async #mark({ clients, pods, probes }: Stage): Promise<Mark> {
    return {
      startedAt: Date.now(),
      gaps: clients.map(({ gaps }) => gaps.length),
      disconnects: clients.map(({ disconnects }) => disconnects.length),
      probes: probes.length,
      pids: pods.map(({ pid }) => pid),
      series: await Promise.all(pods.map((pod) => pod.metrics())),
      lostPerClient: this.#account?.lostPerClient ?? [],
    };
  }
}

/** What a failure leaves to look at. */
async function report({ clients, pods, admin }: Stage, ledger: Ledger): Promise<string> {
  const gaps = clients.map((client, n) => `client-${n}: ${JSON.stringify(client.gaps)}`);
  const turns = pods.flatMap(({ logs }) => logs.filter((line) => /"event":"log_(epoch|gap)"/.test(line)));
  const history = await admin.hget(KEYS.meta, 'history');
  return [printLedger(ledger), ...gaps, ...turns, `history: ${history}`].join('\n');
}

/** Every loss is one gap at each client and a count at the operator; without a loss there is neither. */
async function checkGaps(
  { clients, pods }: Stage,
  { epoch, losesUnread, counts }: Expectations,
  mark: Mark,
  lost: readonly number[],
): Promise<void> {
  const perPod = clients.length / pods.length;
  const told = clients.map(({ gaps }, n) => gaps.slice(mark.gaps[n]).map(({ reason }) => reason));
  expect(told).toEqual(clients.map(() => (epoch ? ['epoch'] : [])));
  for (const [n, pod] of pods.entries()) {
    const now = await pod.metrics();
    const isNew = pod.pid !== mark.pids[n];
    const rise = (series: string): number => (now.get(series) ?? 0) - (isNew ? 0 : (mark.series[n]?.get(series) ?? 0));
    expect(rise('holdfast_log_gaps_total{reason="trimmed"}')).toBe(0);
    expect(rise('holdfast_log_gaps_total{reason="epoch"}')).toBe(epoch ? 1 : 0);
    expect(rise('holdfast_gaps_told_total{reason="epoch"}')).toBe(epoch ? perPod : 0);
    if (epoch) {
      const most = losesUnread === 'unknown' ? 1 : Math.max(1, ...lost.slice(n * perPod, (n + 1) * perPod));
      expect(rise('holdfast_log_entries_lost_total')).toBeGreaterThanOrEqual(most);
      const turns = epoch.map((reason) => rise(`holdfast_log_epochs_total{reason="${reason}"}`));
      expect(turns.reduce((sum, count) => sum + count)).toBe(1);
    }
    counts?.(rise);
  }
  if (losesUnread) expect(Math.max(...lost)).toBeGreaterThan(0);
}

function checkHeard(heard: readonly Heard[], { hears, disconnects }: Expectations): void {
  const refused = heard.filter(({ isAccepted }) => !isAccepted);
  if (!disconnects) expect(refused.filter(({ code }) => code === undefined)).toEqual([]);
  const codes = new Set(refused.map(({ code }) => code));
  for (const code of [undefined, 'unavailable', 'too_many_requests']) codes.delete(code);
  expect([...codes]).toEqual([]);
  const unknown = refused.filter(({ mayHaveHappened }) => mayHaveHappened);
  const landed = new Set(heard.filter(({ isAccepted }) => isAccepted).map(({ id }) => id));
  expect(unknown.filter(({ id }) => !landed.has(id))).toEqual([]);
  // a stock client holds back what is published while it is away
  if (!disconnects) expect(Math.max(...heard.map(({ tookMs }) => tookMs))).toBeLessThan(ANSWER_MS);
  switch (hears) {
    case 'nothing':
      return expect(refused).toEqual([]);
    case 'unavailable':
      expect(unknown).toEqual([]);
      return expect(refused.length).toBeGreaterThan(0);
    case 'mayHaveHappened':
      return expect(unknown.length).toBeGreaterThan(0);
    case 'refusals':
      return expect(refused.length).toBeGreaterThan(0);
    case 'anything':
      return;
    default:
      hears satisfies never;
  }
}

const FAULTS = /"event":"(unhandled_rejection|uncaught_exception|dispatch_error)"/;

function checkPods({ pods, probes }: Stage, { disconnects }: Expectations, mark: Mark): void {
  const notReady = probes.slice(mark.probes).filter(({ status }) => status !== 200);
  // a pod that is dead answers nothing; one that lives is ready, whatever Redis does
  expect(notReady.filter(({ status }) => !(disconnects && status === 0))).toEqual([]);
  for (const pod of pods) {
    expect(pod.isRunning, pod.logs.slice(-10).join('\n')).toBe(true);
    expect(pod.logs.filter((line) => FAULTS.test(line))).toEqual([]);
  }
}
