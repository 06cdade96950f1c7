import type { RelayError } from '../core/errors.js';

/** The relay sends a call again within its grace for daemons, 8 s by default, or never. */
const KEEP_MS = 60_000;
/** The relay gives a socket 64 at a time; more are handlers that go on although their calls are over. */
const MAX_RUNNING = 1000;
/** What it could send again is among the newest 64 that were answered. */
const MAX_KEPT = 10_000;
const MAX_KEPT_BYTES = 16_000_000;

/** What the ack of a request says: a result, or a failure, known by its shape. */
export interface Answer {
  readonly value: unknown;
  readonly bytes: number;
}

export function failure(error: string): Answer {
  return { value: { rpcError: true, error }, bytes: 0 };
}

const DROPPED = failure('it has run, and its answer is no longer kept');

interface Running {
  readonly answer: Promise<Answer>;
  readonly controller: AbortController;
}

interface Kept {
  readonly at: number;
  answer: Answer;
}

/**
 * What became of each call that came here, so that none runs twice: those in work, and answers for a minute. Over 1,000 in
 * work a call is refused unrun; over 16 MB the oldest answers are dropped, though not that they were given; over 10,000 the
 * oldest are forgotten.
 */
export class Answers {
  readonly #running = new Map<string, Running>();
  /** Oldest first. */
  readonly #kept = new Map<string, Kept>();
  #keptBytes = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isClosed = false;

  get keptBytes(): number {
    return this.#keptBytes;
  }

  /** Runs it, unless it came before. Never rejects if `run` doesn't. */
  answer(id: string, run: (signal: AbortSignal) => Promise<Answer>): Promise<Answer> {
    const known = this.#running.get(id)?.answer ?? this.#kept.get(id)?.answer;
    if (known) return Promise.resolve(known);
    if (this.#running.size >= MAX_RUNNING) return Promise.resolve(failure(`${MAX_RUNNING} calls are in work already`));
    const controller = new AbortController();
    const answer = run(controller.signal).then((given) => {
      this.#running.delete(id);
      this.#keep(id, given);
      return given;
    });
    this.#running.set(id, { answer, controller });
    return answer;
  }

  /** Nobody waits for it any more. Its handler may go on, and is not run again. */
  giveUp(id: string, reason: RelayError): void {
    this.#running.get(id)?.controller.abort(reason);
  }

  close(reason: RelayError): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    for (const { controller } of this.#running.values()) controller.abort(reason);
  }

  #keep(id: string, answer: Answer): void {
    if (this.#isClosed) return;
    this.#kept.set(id, { answer, at: performance.now() });
    this.#keptBytes += answer.bytes;
    if (this.#kept.size > MAX_KEPT) this.#forget(this.#kept.keys().next().value as string);
    if (this.#keptBytes > MAX_KEPT_BYTES) this.#drop();
    this.#timer ??= setTimeout(() => this.#forgetOld(), KEEP_MS);
  }

  /** More than it must, as it looks at all of them. */
  #drop(): void {
    for (const kept of this.#kept.values()) {
      if (this.#keptBytes <= MAX_KEPT_BYTES * 0.75) break;
      this.#keptBytes -= kept.answer.bytes;
      if (kept.answer.bytes > 0) kept.answer = DROPPED;
    }
  }

  #forgetOld(): void {
    const now = performance.now();
    this.#timer = undefined;
    for (const [id, { at }] of this.#kept) {
      if (now - at >= KEEP_MS) this.#forget(id);
      else {
        this.#timer = setTimeout(() => this.#forgetOld(), KEEP_MS - (now - at));
        break;
      }
    }
  }

  #forget(id: string): void {
    this.#keptBytes -= this.#kept.get(id)?.answer.bytes ?? 0;
    this.#kept.delete(id);
  }
}
