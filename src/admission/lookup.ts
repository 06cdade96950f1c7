import { fullJitter } from '../core/backoff.js';
import type { Logger } from '../core/ports.js';
import { type Database, type Row, sqlState } from '../postgres/database.js';

const MAX_KEYS = 500;
/** A question that has waited so long for its turn is `unknown`. */
const WAIT_MS = 1000;
const BACK_OFF_MS = 200;
const MAX_BACK_OFF_MS = 1000;
/** What the server says of itself or of this user, not of the statement: connection, rights, resources, shutting down, cancelled. */
const SERVER_STATES = /^(08|28|3D|40|42501|53|57|58|25006)/;
const OUR_FAULTS = [TypeError, RangeError, ReferenceError, SyntaxError];

/** Of one look-up. Whatever is no row is `unknown`: only a row can say no. */
export type Answer<Found> =
  | { readonly is: 'found'; readonly found: Found }
  | { readonly is: 'absent' }
  /** The key itself is what the server can't take, and nothing else is wrong. */
  | { readonly is: 'impossible' }
  | { readonly is: 'unknown' };

export type LookupKey = readonly (string | null)[];

export interface LookupOptions<Found> {
  readonly database: Database;
  /** For log lines. */
  readonly name: string;
  /**
   * One row for each key: `$1` … are its parts, each an array of texts, to be unnested `with ordinality`; the column `i` is that
   * ordinal as an int4.
   */
  readonly statement: string;
  /** Parts of a key. */
  readonly width: number;
  /** `undefined`: no such thing. A throw is a fault of ours, and `unknown`. */
  readonly parse: (row: Row) => Found | undefined;
  /** So many are under way at once. What strangers can ask about must leave the pool's other connections to admission. */
  readonly statements: number;
  /** Its server answers again, or no more. */
  readonly onChange?: (isAnswering: boolean) => void;
  readonly logger: Logger;
}

interface Question<Found> {
  readonly key: LookupKey;
  readonly askedAt: number;
  waiting: number;
  readonly answer: Promise<Answer<Found>>;
  readonly settle: (answer: Answer<Found>) => void;
  batch: Batch<Found> | undefined;
}

interface Batch<Found> {
  readonly questions: readonly Question<Found>[];
  readonly stop: AbortController;
}

/**
 * Asks Postgres about many keys at once. All that is asked in one tick shares a statement, few statements are under way at a
 * time, and a server that doesn't answer is left alone for a while: until then everything is `unknown` at once.
 *
 * An answer is never older than its question: what is under way already is not shared, so that whoever listens for changes
 * first and asks then misses none.
 */
export class Lookup<Found> {
  readonly #queue = new Map<string, Question<Found>>();
  readonly #underWay = new Set<Batch<Found>>();
  #isFlushing = false;
  #failures = 0;
  #restUntil = 0;
  #unknowns = 0;
  #timer: NodeJS.Timeout | undefined;

  constructor(private readonly options: LookupOptions<Found>) {}

  /** The last statement was answered. */
  get isAnswering(): boolean {
    return this.#failures === 0;
  }

  /**
   * @param key its parts, validated as names
   * @param signal whoever asked has gone: the last one to go stops the statement
   */
  async ask(key: LookupKey, signal?: AbortSignal): Promise<Answer<Found>> {
    const now = performance.now();
    // one asks for all whether the server is back
    const isTried = this.#failures > 0 && this.#underWay.size + this.#queue.size > 0;
    const isResting = now < this.#restUntil || isTried;
    if (isResting || signal?.aborted) return this.#unknown();
    const id = JSON.stringify(key);
    let question = this.#queue.get(id);
    if (!question) {
      question = newQuestion(key, now);
      this.#queue.set(id, question);
      this.#flushSoon();
    }
    question.waiting++;
    if (!signal) return question.answer;
    const asked = question;
    const gone = (): void => this.#leave(id, asked);
    signal.addEventListener('abort', gone, { once: true });
    try {
      return await asked.answer;
    } finally {
      signal.removeEventListener('abort', gone);
    }
  }

  #unknown(): Answer<Found> {
    this.#unknowns++;
    return { is: 'unknown' };
  }

  #leave(id: string, question: Question<Found>): void {
    if (--question.waiting > 0) return;
    question.settle({ is: 'unknown' });
    if (this.#queue.get(id) === question) this.#queue.delete(id);
    else if (question.batch?.questions.every(({ waiting }) => waiting <= 0)) question.batch.stop.abort();
  }

  #flushSoon(): void {
    if (this.#isFlushing) return;
    this.#isFlushing = true;
    setImmediate(() => {
      this.#isFlushing = false;
      this.#flush();
    });
  }

  #flush(): void {
    clearTimeout(this.#timer);
    const now = performance.now();
    for (const [id, question] of this.#queue) {
      if (now - question.askedAt < WAIT_MS) break;
      this.#queue.delete(id);
      question.settle(this.#unknown());
    }
    // a server that failed is tried with one statement
    const most = this.#failures > 0 ? 1 : this.options.statements;
    while (this.#queue.size > 0 && this.#underWay.size < most) {
      const questions: Question<Found>[] = [];
      for (const [id, question] of this.#queue) {
        if (questions.length === MAX_KEYS) break;
        this.#queue.delete(id);
        questions.push(question);
      }
      void this.#run(questions);
    }
    const oldest = this.#queue.values().next().value;
    if (oldest) this.#timer = setTimeout(() => this.#flush(), Math.max(1, oldest.askedAt + WAIT_MS - now)).unref();
  }

  async #run(questions: readonly Question<Found>[]): Promise<void> {
    const batch = { questions, stop: new AbortController() };
    for (const question of questions) question.batch = batch;
    this.#underWay.add(batch);
    try {
      this.#settle(questions, await this.#select(questions, batch.stop.signal));
      this.#answered();
    } catch (error) {
      if (batch.stop.signal.aborted) return;
      if (sqlState(error)?.startsWith('22')) await this.#alone(questions, error);
      else this.#failed(questions, error);
    } finally {
      this.#underWay.delete(batch);
      this.#flush();
    }
  }

  #select(questions: readonly Question<Found>[], signal: AbortSignal): Promise<readonly Row[]> {
    const { database, statement, width } = this.options;
    const parts = Array.from({ length: width }, (_, part) => questions.map(({ key }) => key[part] ?? null));
    return database.queryUntil(signal, statement, parts);
  }

  #settle(questions: readonly Question<Found>[], rows: readonly Row[]): void {
    const { parse } = this.options;
    const answers: Answer<Found>[] = questions.map(() => ({ is: 'absent' }));
    for (const row of rows) {
      const found = parse(row);
      if (found !== undefined) answers[Number(row.i) - 1] = { is: 'found', found };
    }
    for (const [index, question] of questions.entries()) question.settle(answers[index] as Answer<Found>);
  }

  /** One of them has what the server can't take: the others have their answers all the same. */
  async #alone(questions: readonly Question<Found>[], cause: unknown): Promise<void> {
    const { width } = this.options;
    const { signal } = new AbortController();
    const control = newQuestion<Found>(new Array<string>(width).fill('holdfast'), performance.now());
    const isSound = await this.#select([control], signal).then(
      () => true,
      () => false,
    );
    if (!isSound) return this.#failed(questions, cause);
    for (const question of questions) {
      if (question.waiting <= 0) continue;
      try {
        this.#settle([question], await this.#select([question], signal));
      } catch (error) {
        if (!sqlState(error)?.startsWith('22')) return this.#failed(questions, error);
        question.settle({ is: 'impossible' });
      }
    }
  }

  #failed(questions: readonly Question<Found>[], error: unknown): void {
    const { logger, name, onChange } = this.options;
    const rest = Math.min(MAX_BACK_OFF_MS, BACK_OFF_MS * 2 ** this.#failures);
    this.#restUntil = performance.now() + rest / 2 + fullJitter(0, rest / 2, rest / 2);
    if (this.#failures++ === 0) {
      if (isOurs(error))
        logger.error(
          { event: 'lookups_failing', of: name, err: error },
          'Postgres cannot be asked, by a fault of ours: what it would say is unknown',
        );
      else
        logger.warn(
          { event: 'lookups_failing', of: name, err: error },
          'Postgres does not answer: what it would say is unknown',
        );
      onChange?.(false);
    }
    for (const question of questions) question.settle(this.#unknown());
    // whoever waits behind them would wait for the same
    for (const question of this.#queue.values()) question.settle(this.#unknown());
    this.#queue.clear();
  }

  #answered(): void {
    if (this.#failures === 0) return;
    const { logger, name, onChange } = this.options;
    this.#failures = 0;
    this.#restUntil = 0;
    logger.info({ event: 'lookups_answered', of: name, unknowns: this.#unknowns }, 'Postgres answers again');
    this.#unknowns = 0;
    onChange?.(true);
  }
}

function newQuestion<Found>(key: LookupKey, askedAt: number): Question<Found> {
  let settle: (answer: Answer<Found>) => void = () => {};
  const answer = new Promise<Answer<Found>>((resolve) => {
    settle = resolve;
  });
  return { key, askedAt, waiting: 0, answer, settle, batch: undefined };
}

/** A statement that no server could run, or a throw of our own: it says nothing of anybody. */
function isOurs(error: unknown): boolean {
  const state = sqlState(error);
  if (state !== undefined) return !SERVER_STATES.test(state);
  return OUR_FAULTS.some((kind) => error instanceof kind);
}
