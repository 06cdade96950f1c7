import { RelayError } from '../core/errors.js';
import { sleep, within } from '../core/sleep.js';
import type { EventLog, LogGap } from '../log/index.js';
import type { Position } from '../wire/position.js';
import { epochGap, type Hub } from './hub.js';

const REDIS_MS = 1000;
/** How much later than another pod this one may hear of a new epoch. */
const EPOCH_MS = 3000;

/** Where somebody begins to read, and what is missing before it. */
export interface Place {
  readonly epoch: string;
  readonly ms: number;
  readonly offset: number;
  readonly gap?: LogGap;
}

/** Says what a position that somebody brought means now. Positions come from outside: every part may be made up. */
export class Locator {
  constructor(
    private readonly log: EventLog,
    private readonly hub: Hub,
  ) {}

  /**
   * `undefined`: it is none of this log's.
   *
   * @throws {RelayError} `unavailable` when Redis can't say
   */
  async locate(position: Position, partition: number): Promise<Place | undefined> {
    if (position.partition !== partition) return undefined;
    await this.#meetEpoch(position, partition);
    const { epoch, ms, offset } = this.hub.dispatched(partition);
    const here = this.log.resolve(position);
    if (here.kind === 'invalid') return undefined;
    if (here.kind === 'epoch') {
      // a log that forked has kept what one pod went on with: an entry that is there, at its very time, was not lost
      const kept = await this.#locateInLog(position, partition, epoch);
      if (kept?.offset === position.offset && kept.ms === position.ms) return kept;
      return { epoch, ms: here.ms, offset: here.offset, gap: epochGap(position, here.offset) };
    }
    const known = this.hub.ring(partition).get(here.offset);
    if (known) return known.ms === here.ms ? { epoch, ms: here.ms, offset: here.offset } : undefined;
    if (here.offset === offset && here.ms === ms) return { epoch, ms, offset };
    return this.#locateInLog(here, partition, epoch);
  }

  /** While Redis can't say: taken as it is; what is missing shows as a gap when the log can be read. */
  guess(position: Position, partition: number): Place | undefined {
    if (position.partition !== partition) return undefined;
    const { epoch } = this.hub.dispatched(partition);
    const here = this.log.resolve(position);
    if (here.kind === 'invalid') return undefined;
    const gap = here.kind === 'epoch' ? epochGap(position, here.offset) : undefined;
    return { epoch, ms: here.ms, offset: here.offset, ...(gap && { gap }) };
  }

  /** An epoch that this pod doesn't know may be a newer one, which another pod met first: then it waits for its own turn. */
  async #meetEpoch(position: Position, partition: number): Promise<void> {
    const deadline = performance.now() + EPOCH_MS;
    while (position.epoch !== this.hub.dispatched(partition).epoch) {
      const { epoch } = await this.#page(partition, { ms: 0, offset: 0 });
      if (epoch === this.hub.dispatched(partition).epoch) return;
      if (performance.now() > deadline) throw new RelayError('unavailable', 'the log began a new epoch');
      await sleep(20);
    }
  }

  async #locateInLog(
    here: { ms: number; offset: number },
    partition: number,
    epoch: string,
  ): Promise<Place | undefined> {
    // the entry itself must be there, with this very time: a time that was made up would skip what is older than it
    const page = await this.#page(partition, { ms: here.ms, offset: Math.max(0, here.offset - 1) });
    if (here.offset >= page.first) {
      const { ms, offset } = page.scanned;
      return offset === here.offset && ms === here.ms ? { epoch, ms, offset } : undefined;
    }
    // it was trimmed, and its time can't be checked any more: reading begins at the oldest entry, whatever its time
    const place = { epoch, ms: 0, offset: page.first - 1 };
    if (here.offset + 1 === page.first) return place;
    const from = { epoch, ms: here.ms, offset: here.offset + 1 };
    const to = { epoch, ms: here.ms, offset: page.first - 1 };
    return { ...place, gap: { partition, reason: 'trimmed', from, to } };
  }

  async #page(partition: number, after: { ms: number; offset: number }) {
    const page = await within(REDIS_MS, this.log.page(partition, after, { entries: 1, bytes: 1 })).catch(
      (error: unknown) => {
        throw new RelayError('unavailable', undefined, { cause: error });
      },
    );
    if (!page) throw new RelayError('unavailable');
    return page;
  }
}
