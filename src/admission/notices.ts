import { randomUUID } from 'node:crypto';
import { fullJitter } from '../core/backoff.js';
import type { Logger } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep, within } from '../core/sleep.js';
import type { Database, Listening } from '../postgres/database.js';

const CHANNEL = 'holdfast_admission';
const PROVE_MS = 2000;
const PROVE_AGAIN_MS = 30_000;
const FIRST_BACK_OFF_MS = 200;
const MAX_BACK_OFF_MS = 5000;

/** What changed: the parts of a name, the first of which is its kind: tenant, device, user, token or key. */
export type Notice = readonly [kind: string, ...parts: string[]];

export interface NoticesOptions {
  readonly database: Database;
  readonly onNotice: (notice: Notice) => void;
  /** From now on every change is heard; what changed before may have been missed. */
  readonly onHeard: () => void;
  readonly logger: Logger;
}

/**
 * Hears of changes as they are committed. A connection that only seems to listen (behind a pooler in transaction mode `LISTEN`
 * succeeds and nothing arrives) is found out at once, by a notice of our own.
 */
export class Notices extends Service {
  readonly #stopping = new AbortController();
  #running: Promise<void> = Promise.resolve();
  #isHeard = false;
  #hasWarned = false;
  /** Resolved by the notice that this process sends itself. */
  #probe: { readonly id: string; readonly heard: () => void } | undefined;

  constructor(private readonly options: NoticesOptions) {
    super();
  }

  /** What is committed now will be told here. */
  get isHeard(): boolean {
    return this.#isHeard;
  }

  protected async onStart(): Promise<void> {
    this.#running = this.#listenForever();
  }

  protected async onStop(): Promise<void> {
    this.#stopping.abort();
    await within(1500, this.#running);
  }

  async #listenForever(): Promise<void> {
    const { signal } = this.#stopping;
    for (let attempt = 0; !signal.aborted; attempt++) {
      const wasHeard = await this.#listen(signal).catch((error: unknown) => {
        this.options.logger.debug({ event: 'notices_lost', err: error }, 'changes are not heard; trying again');
        return this.#isHeard;
      });
      this.#isHeard = false;
      if (wasHeard) attempt = 0;
      await sleep(FIRST_BACK_OFF_MS + fullJitter(attempt, FIRST_BACK_OFF_MS, MAX_BACK_OFF_MS), signal);
    }
  }

  /** Resolves, or rejects, when the connection is of no use any more. True: it had been of use. */
  async #listen(stopping: AbortSignal): Promise<boolean> {
    const { database, onHeard } = this.options;
    const lost = new AbortController();
    const isOver = (): boolean => lost.signal.aborted || stopping.aborted;
    const listening = await database.listen(
      CHANNEL,
      (payload) => this.#hear(payload),
      () => lost.abort(),
    );
    const close = (): void => lost.abort();
    stopping.addEventListener('abort', close, { once: true });
    try {
      while (!(await this.#hearSelf(lost.signal))) {
        if (isOver()) return false;
        this.#warn();
        // a busy moment looks the same: it is tried again on this connection
        await this.#keep(listening, lost.signal, PROVE_AGAIN_MS);
        if (isOver()) return false;
      }
      this.#isHeard = true;
      onHeard();
      await this.#keep(listening, lost.signal);
      return true;
    } finally {
      stopping.removeEventListener('abort', close);
      this.#isHeard = false;
      await within(500, listening.close()).catch(() => {});
    }
  }

  async #keep(listening: Listening, lost: AbortSignal, forMs = Number.POSITIVE_INFINITY): Promise<void> {
    const until = performance.now() + forMs;
    while (!lost.aborted && performance.now() < until) {
      await sleep(PROVE_MS, lost);
      if (!lost.aborted) await listening.prove();
    }
  }

  async #hearSelf(lost: AbortSignal): Promise<boolean> {
    const id = randomUUID();
    const heard = new Promise<true>((resolve) => {
      this.#probe = { id, heard: () => resolve(true) };
    });
    try {
      await this.options.database.query('select pg_notify($1, $2)', [CHANNEL, JSON.stringify(['probe', id])]);
      return (await within(PROVE_MS, Promise.race([heard, aborted(lost)]))) === true;
    } finally {
      this.#probe = undefined;
    }
  }

  #warn(): void {
    if (this.#hasWarned) return;
    this.#hasWarned = true;
    this.options.logger.warn(
      { event: 'notices_not_heard' },
      'Postgres takes LISTEN but its notices do not arrive (a pooler in transaction mode?): changes count from the next revalidation',
    );
  }

  #hear(payload: string): void {
    const notice = parse(payload);
    if (!notice) return;
    if (notice[0] === 'probe') {
      if (notice[1] === this.#probe?.id) this.#probe?.heard();
      return;
    }
    this.options.onNotice(notice);
  }
}

/** Anybody who may write to this database can notify: whatever has another form is no notice. */
function parse(payload: string): Notice | undefined {
  try {
    const value: unknown = JSON.parse(payload);
    const isNotice = Array.isArray(value) && value.length > 0 && value.every((part) => typeof part === 'string');
    return isNotice ? (value as unknown as Notice) : undefined;
  } catch {
    return undefined;
  }
}

function aborted(signal: AbortSignal): Promise<false> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve(false);
    else signal.addEventListener('abort', () => resolve(false), { once: true });
  });
}
