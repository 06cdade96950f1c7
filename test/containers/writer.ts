import { sleep } from '../../src/core/sleep.js';
import { type Ack, outcomeOf } from '../harness/client.js';
import type { Attempt, Offer } from '../harness/ledger.js';
import { TEST_API_KEY } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';

const REQUEST_MS = 5000;
/** Between two events, so that the writing outlasts a fault. */
const PACE_MS = 5;
const RETRY_MS = 50;
/** Longer than any outage that a test makes. */
const GIVE_UP_MS = 60_000;

export interface WriterOptions {
  readonly url: string;
  readonly room: string;
  readonly count: number;
}

/** A back end that publishes by the HTTP API, one event after the other, each under its id until it is accepted. */
export class Writer {
  readonly offers: Offer[] = [];
  /** In the order of writing, which therefore is the order of the log. */
  readonly ids: readonly string[];
  /** Rejects when an event can't be brought in. */
  readonly done: Promise<void>;
  #acceptedCount = 0;

  constructor(private readonly options: WriterOptions) {
    const { room, count } = options;
    this.ids = Array.from({ length: count }, (_, index) => `${room}-${index}`);
    this.done = this.#run();
    this.done.catch(() => {}); // whoever awaits it hears of it
  }

  get acceptedCount(): number {
    return this.#acceptedCount;
  }

  /** How often an attempt failed. */
  get failures(): number {
    return this.offers.flatMap(({ attempts }) => attempts).filter(({ outcome }) => outcome.kind !== 'accepted').length;
  }

  async untilAccepted(count: number): Promise<void> {
    await eventually(() => this.#acceptedCount >= count, { withinMs: GIVE_UP_MS, what: `${count} accepted events` });
  }

  /** Resolves when the writer feels the fault that a test has made. */
  async untilFailing(): Promise<void> {
    const before = this.failures;
    await eventually(() => this.failures > before, { withinMs: GIVE_UP_MS, what: 'a write that fails' });
  }

  async #run(): Promise<void> {
    for (const id of this.ids) {
      const attempts: Attempt[] = [];
      this.offers.push({ id, room: this.options.room, attempts });
      await this.#bringIn(id, attempts);
      this.#acceptedCount++;
      await sleep(PACE_MS);
    }
  }

  async #bringIn(id: string, attempts: Attempt[]): Promise<void> {
    const giveUpAt = Date.now() + GIVE_UP_MS;
    for (;;) {
      const startedAt = Date.now();
      const publishing = this.#publish(id);
      const outcome = await outcomeOf(publishing);
      attempts.push({ outcome, startedAt, endedAt: Date.now() });
      if (outcome.kind === 'accepted') return;
      const answer = await publishing.catch((error: Error) => error);
      const isFinal = !(answer instanceof Error) && answer.retryable === false;
      if (isFinal || Date.now() > giveUpAt)
        throw new Error(`${id}: not accepted after ${attempts.length} tries; the last: ${textOf(answer)}`);
      await sleep(RETRY_MS);
    }
  }

  /** @throws when there was no answer: what became of the event is unknown */
  async #publish(id: string): Promise<Ack> {
    const response = await fetch(`${this.options.url}/v1/publish`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: `Bearer ${TEST_API_KEY}` },
      body: JSON.stringify({ room: this.options.room, event: 'order', data: { id }, id }),
      signal: AbortSignal.timeout(REQUEST_MS),
    });
    const answer = (await response.json()) as Ack;
    return response.ok ? answer : { ...answer, ok: false };
  }
}

function textOf(answer: Ack | Error): string {
  return answer instanceof Error ? `${answer.message}: ${answer.cause}` : JSON.stringify(answer);
}
