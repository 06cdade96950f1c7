interface Ticket {
  readonly position: string;
  /** Handlers that have not finished with it. */
  pending: number;
}

const COMPACT_AT = 1024;

/**
 * The newest position up to which everything was handled, however the handlers of different rooms overtake each other.
 * Bounded by the buffers of the subscriptions: what nobody has to handle takes no place behind what somebody has.
 */
export class Progress {
  #tickets: Ticket[] = [];
  #compactAt = COMPACT_AT;
  #position: string | undefined;

  constructor(private readonly onMove: () => void) {}

  get position(): string | undefined {
    return this.#position;
  }

  /** Positions that it holds. */
  get size(): number {
    return this.#tickets.length;
  }

  /** Where an earlier run had got to. */
  restore(position: string): void {
    this.#position = position;
  }

  /** `count` handlers get what stands there. @returns to be called once by each of them */
  begin(position: string, count: number): () => void {
    const ticket: Ticket = { position, pending: count };
    this.#tickets.push(ticket);
    if (this.#tickets.length >= this.#compactAt) this.#compact();
    return () => {
      ticket.pending--;
      this.#advance();
    };
  }

  /** There is nothing to handle up to there, but what has begun. */
  pass(position: string): void {
    const last = this.#tickets.at(-1);
    if (!last) this.#move(position);
    else if (last.pending === 0) this.#tickets[this.#tickets.length - 1] = { position, pending: 0 };
    else this.#tickets.push({ position, pending: 0 });
  }

  #advance(): void {
    const open = this.#tickets.findIndex(({ pending }) => pending > 0);
    const done = this.#tickets.splice(0, open === -1 ? this.#tickets.length : open);
    const last = done.at(-1);
    if (last) this.#move(last.position);
  }

  /** Behind one that is never handled those that were must not pile up: of a run of them the last is enough. */
  #compact(): void {
    this.#tickets = this.#tickets.filter(({ pending }, index, all) => pending > 0 || all[index + 1]?.pending !== 0);
    this.#compactAt = Math.max(COMPACT_AT, 2 * this.#tickets.length);
  }

  #move(position: string): void {
    if (position === this.#position) return;
    this.#position = position;
    this.onMove();
  }
}
