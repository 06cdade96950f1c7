import type { Holder } from './device.js';
import type { SessionVerdict } from './verdict.js';

/** A connection of this process that has, or wants, its device. */
export interface Held {
  readonly scope: string;
  readonly holder: Holder;
  /** Monotonic ms. */
  admittedAt: number;
  /** The same by Redis's clock, once Redis has confirmed it. */
  at: number | undefined;
  /** Redis may name it. */
  mayBeWritten: boolean;
  /** When Redis last set its session's life, monotonic ms. */
  renewedAt: number;
}

/** One device's connections here. */
interface Place {
  readonly all: Map<string, Held>;
  current: Held | undefined;
  /** Last two takeovers of a holder that was not proved dead, newest first, monotonic ms. */
  takeovers: readonly [number, number];
}

export interface PlaceSettings {
  readonly settleMs: number;
  readonly loopMs: number;
}

/** Devices of this process: what Redis is told again, and what decides while it is away. */
export class Places {
  readonly #places = new Map<string, Place>();
  readonly #authoritative = new Set<Held>();

  constructor(private readonly settings: PlaceSettings) {}

  /** Connections here that are their device's session. */
  get count(): number {
    return this.#authoritative.size;
  }

  /** While it is walked over, some may go and others come. */
  authoritative(): IterableIterator<Held> {
    return this.#authoritative.values();
  }

  enter(scope: string, holder: Holder): Held {
    const place = this.#places.get(scope) ?? { all: new Map(), current: undefined, takeovers: [-Infinity, -Infinity] };
    this.#places.set(scope, place);
    const known = place.all.get(holder.id);
    if (known) return known;
    const held = {
      scope,
      holder,
      admittedAt: 0,
      at: undefined,
      mayBeWritten: false,
      renewedAt: 0,
    };
    place.all.set(holder.id, held);
    return held;
  }

  find(scope: string, holderId: string): Held | undefined {
    return this.#places.get(scope)?.all.get(holderId);
  }

  has(held: Held): boolean {
    return this.find(held.scope, held.holder.id) === held;
  }

  current(scope: string): Held | undefined {
    return this.#places.get(scope)?.current;
  }

  isCurrent(held: Held): boolean {
    return this.#authoritative.has(held);
  }

  /** The twin of the script, for a Redis that is away: settle window and loop breaker among the connections of this process. */
  decide(held: Held, provedDead: string, now = performance.now()): SessionVerdict {
    const place = this.#places.get(held.scope);
    const holder = place?.current;
    if (!place || !holder || holder === held) return { is: 'taken', at: undefined, from: '' };
    const { id } = holder.holder;
    if (id === provedDead) return { is: 'taken', at: undefined, from: id };
    const { settleMs, loopMs } = this.settings;
    const settleLeft = settleMs - (now - holder.admittedAt);
    if (settleLeft > 0) return { is: 'contested', by: 'settle', holder: id, waitMs: Math.ceil(settleLeft) };
    const loopLeft = loopMs - (now - place.takeovers[1]);
    if (loopLeft > 0) return { is: 'contested', by: 'loop', holder: id, waitMs: Math.ceil(loopLeft) };
    place.takeovers = [now, place.takeovers[0]];
    return { is: 'taken', at: undefined, from: id };
  }

  /** Makes it the device's session here. Returns the connection here that had it. */
  take(held: Held, at: number | undefined): Held | undefined {
    const place = this.#places.get(held.scope);
    if (!place) return undefined;
    const lost = place.current === held ? undefined : place.current;
    if (lost) this.#authoritative.delete(lost);
    place.current = held;
    this.#authoritative.add(held);
    held.admittedAt = held.renewedAt = performance.now();
    held.at = at;
    return lost;
  }

  /** False: it was gone already. */
  remove(held: Held): boolean {
    const place = this.#places.get(held.scope);
    if (place?.all.get(held.holder.id) !== held) return false;
    place.all.delete(held.holder.id);
    this.#authoritative.delete(held);
    if (place.current === held) place.current = undefined;
    if (place.all.size === 0) this.#places.delete(held.scope);
    return true;
  }
}
