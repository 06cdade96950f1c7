import { within } from '../../core/sleep.js';
import type { Inbox, InboxMessage } from '../../pods/inbox.js';
import { type Holder, processOf } from './device.js';
import type { SessionMetrics } from './metrics.js';

/** Any packet of the client within that time. */
const PING_MS = 600;
/** As that, and the way to the other process and back. */
const ANSWER_MS = 800;
/** A timer that is so late tells that this process stood still, and what was answered is still to be read. */
const STALL_MS = 200;

export type Life =
  | 'alive'
  /** It had its time to answer. */
  | 'silent'
  /** Its connection or its process is. */
  | 'gone'
  /** It could not be asked: Redis is away. */
  | 'unknown';

export interface ProofOptions {
  readonly inbox: Inbox;
  readonly processId: string;
  /** This process may take others for dead. */
  readonly mayJudge: () => boolean;
  /** That process has a connection to Redis now. */
  readonly isConnected: (processId: string) => Promise<boolean>;
  /** A connection of this process. */
  readonly find: (scope: string, holderId: string) => Holder | undefined;
  readonly metrics: SessionMetrics;
}

/** Whether a device's holder lives is never assumed: it is asked, wherever it is. One question at a time per holder, whoever asks. */
export class ProofOfLife {
  readonly #asked = new Map<string, Promise<Life>>();
  readonly #answers = new Map<string, (isAlive: boolean) => void>();

  constructor(private readonly options: ProofOptions) {}

  /** Others may ask this process from now on. */
  listen(): void {
    const { inbox } = this.options;
    inbox.on('session-probe', (message) => void this.#onProbe(message));
    inbox.on('session-life', ({ id, isAlive }) => this.#answers.get(String(id))?.(isAlive === true));
  }

  /** Never rejects; within about 0.8 s. */
  of(scope: string, holderId: string): Promise<Life> {
    const asked = this.#asked.get(holderId);
    if (asked) return asked;
    const { processId, metrics } = this.options;
    const asking = processOf(holderId) === processId ? this.#here(scope, holderId) : this.#there(scope, holderId);
    const asks = asking
      .catch((): Life => 'unknown')
      .then((life) => {
        this.#asked.delete(holderId);
        metrics.proofs.inc({ outcome: life });
        return life;
      });
    this.#asked.set(holderId, asks);
    return asks;
  }

  async #here(scope: string, holderId: string): Promise<Life> {
    for (let isLast = false; ; isLast = true) {
      const askedAt = performance.now();
      const holder = this.options.find(scope, holderId);
      if (!holder) return 'gone';
      if (await within(PING_MS, holder.isAlive(PING_MS)).catch(() => false)) return 'alive';
      if (isLast || performance.now() - askedAt < PING_MS + STALL_MS) return 'silent';
    }
  }

  async #there(scope: string, holderId: string): Promise<Life> {
    const { inbox, processId, isConnected, mayJudge } = this.options;
    const askedAt = performance.now();
    const process = processOf(holderId);
    const isThere = await within(ANSWER_MS, isConnected(process));
    if (isThere === undefined) return 'unknown';
    // right after Redis or this process stood still, others may not have come back yet
    if (!isThere && mayJudge()) return 'gone';
    const heard = this.#hear(holderId);
    try {
      const probe = { type: 'session-probe', scope, id: holderId, from: processId };
      const left = (): number => askedAt + ANSWER_MS - performance.now();
      const isSent = await within(left(), inbox.send(process, probe));
      if (isSent === undefined) return 'unknown';
      // a process without an inbox and without a connection has ended in order
      if (!isSent) return isThere ? 'unknown' : 'gone';
      let isAlive = await within(left(), heard);
      if (isAlive === undefined && left() < -STALL_MS) isAlive = await within(STALL_MS, heard);
      return isAlive ? 'alive' : 'silent';
    } finally {
      this.#answers.delete(holderId);
    }
  }

  #hear(holderId: string): Promise<boolean> {
    return new Promise((resolve) => this.#answers.set(holderId, resolve));
  }

  async #onProbe({ scope, id, from }: InboxMessage): Promise<void> {
    const { inbox, find } = this.options;
    const [where, holderId] = [String(scope), String(id)];
    const isHere = find(where, holderId) !== undefined;
    const isAlive = isHere && (await this.of(where, holderId)) === 'alive';
    // whoever asked counts silence as an answer
    await inbox.send(String(from), { type: 'session-life', id: holderId, isAlive }).catch(() => false);
  }
}
