import type { Counter, Histogram, Meter } from '../core/ports.js';
import { within } from '../core/sleep.js';
import { redactText } from './redact.js';

export interface DependencyStatus {
  readonly status: 'up' | 'down';
  /** Of an answer, in ms. */
  readonly latencyMs?: number;
  /** Why it is down, without secrets. */
  readonly error?: string;
  /** ISO 8601. */
  readonly checkedAt: string;
}

/** By name of the dependency. */
export type DependencyReport = Readonly<Record<string, DependencyStatus>>;

export interface DependencyCheckOptions {
  /**
   * Name → a real command over a connection of the check's own. It must settle some day: while one hangs no second one
   * is sent, so that a dead dependency costs one waiting command, not one per question.
   */
  readonly checks: Readonly<Record<string, () => Promise<unknown>>>;
  readonly meter: Meter;
  /** ms since 1970 */
  readonly now?: () => number;
}

/** Longest wait for a dependency, in ms: leaves room to answer within 1 s. */
const ANSWER_MS = 900;
/** A result this young answers the next question too, in ms. */
const FRESH_MS = 1000;
const MAX_ERROR_LENGTH = 200;
const DURATION_BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1];

/**
 * How the dependencies are, for people to look at; it steers nothing. However many ask, each dependency has at most one
 * check running, and an answer comes within 1 s.
 */
export class DependencyCheck {
  readonly #probes: readonly Probe[];

  constructor({ checks, meter, now = Date.now }: DependencyCheckOptions) {
    const dependency = Object.keys(checks);
    const counter = meter.counter({
      name: 'dependency_checks_total',
      help: 'Checks of a dependency, asked for by /_status',
      labels: { dependency, outcome: ['up', 'down', 'timeout'] },
    });
    const duration = meter.histogram({
      name: 'dependency_check_duration_seconds',
      help: 'How long a check of a dependency took, time-outs included',
      buckets: DURATION_BUCKETS,
      labels: { dependency },
    });
    this.#probes = Object.entries(checks).map(([name, check]) => new Probe(name, check, counter, duration, now));
  }

  /** Never rejects. */
  async read(): Promise<DependencyReport> {
    return Object.fromEntries(
      await Promise.all(this.#probes.map(async (probe) => [probe.name, await probe.read()] as const)),
    );
  }
}

class Probe {
  #last: { readonly status: DependencyStatus; readonly atMs: number } | undefined;
  #round: Promise<DependencyStatus> | undefined;
  /** The command that is out; outlives its round when it hangs. */
  #command: Promise<'up'> | undefined;

  constructor(
    readonly name: string,
    private readonly check: () => Promise<unknown>,
    private readonly checks: Counter,
    private readonly duration: Histogram,
    private readonly now: () => number,
  ) {}

  async read(): Promise<DependencyStatus> {
    if (this.#round) return this.#round;
    const age = this.#last ? this.now() - this.#last.atMs : Number.POSITIVE_INFINITY;
    if (this.#last && age >= 0 && age < FRESH_MS) return this.#last.status;
    this.#round = this.#ask().finally(() => {
      this.#round = undefined;
    });
    return this.#round;
  }

  async #ask(): Promise<DependencyStatus> {
    const startedAt = performance.now();
    const outcome = await this.#outcome();
    const latencyMs = performance.now() - startedAt;
    const atMs = this.now();
    const checkedAt = new Date(atMs).toISOString();
    const status: DependencyStatus =
      outcome.is === 'up'
        ? { status: 'up', latencyMs: Math.round(latencyMs * 100) / 100, checkedAt }
        : { status: 'down', error: outcome.error, checkedAt };
    this.checks.inc({ dependency: this.name, outcome: outcome.is });
    this.duration.observe(latencyMs / 1000, { dependency: this.name });
    this.#last = { status, atMs };
    return status;
  }

  async #outcome(): Promise<{ readonly is: 'up' } | { readonly is: 'down' | 'timeout'; readonly error: string }> {
    try {
      const answer = await within(ANSWER_MS, this.#send());
      return answer ? { is: 'up' } : { is: 'timeout', error: `no answer within ${ANSWER_MS} ms` };
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      return { is: 'down', error: redactText(text).slice(0, MAX_ERROR_LENGTH) };
    }
  }

  #send(): Promise<'up'> {
    this.#command ??= (async () => {
      try {
        await this.check();
        return 'up' as const;
      } finally {
        this.#command = undefined;
      }
    })();
    return this.#command;
  }
}
