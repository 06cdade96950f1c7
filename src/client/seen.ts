interface Known {
  readonly print: number;
  readonly at: number;
  readonly epoch: string | undefined;
}

/**
 * What came before, by room and id, the newest `max` of them. An id is only its publisher's own and the wire doesn't name the
 * publisher, so an id alone never makes an event a duplicate: its content must be the same too, and it must be either the
 * same entry (same time) or one of another epoch, which is what a publisher sends again after a failover.
 */
export class Seen {
  readonly #known = new Map<string, Known>();

  constructor(private readonly max: number) {}

  /** Notes it, and says whether it came before. */
  isRepeated(room: string, id: string, known: Known): boolean {
    const key = `${id}\n${room}`;
    const before = this.#known.get(key);
    const isSame = before !== undefined && before.print === known.print;
    if (isSame && (before.at === known.at || before.epoch !== known.epoch)) return true;
    this.#known.delete(key);
    this.#known.set(key, known);
    if (this.#known.size > this.max) this.#known.delete(this.#known.keys().next().value as string);
    return false;
  }
}
