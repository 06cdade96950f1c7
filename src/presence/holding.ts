import { escapePart, scoped } from '../wire/names.js';

/** `take`: a socket came. `again`: it is still here, and may have been written before. `leave`: it is gone. */
type Kind = 'take' | 'again' | 'leave';

export interface Change {
  readonly field: string;
  readonly kind: Kind;
  readonly ageMs: number;
}

/** Changes of a user that are on their way. */
export interface Written {
  readonly holding: Holding;
  readonly changes: readonly Change[];
  readonly waiting: readonly (() => void)[];
}

/** One connection of a socket. A client that recovers keeps its socket's id, also on the process that still has its old connection. */
export interface Stay {
  readonly cameAt: number;
  /** Redis may hold it. */
  isWritten: boolean;
  /** Its client is gone and may come back. */
  lingering?: NodeJS.Timeout;
}

/** `<device>|<socket id>`: the device escaped, so without `|`. */
export function fieldOf(device: string | undefined, socketId: string): string {
  return `${device === undefined ? '' : escapePart(device)}|${socketId}`;
}

export function deviceOf(field: string): string | undefined {
  return decodeURIComponent(field.slice(0, field.indexOf('|'))) || undefined;
}

/** The sockets of one user that this process holds, and what Redis has not been told of them. */
export class Holding {
  /** `<tenant>/<user>`, each part escaped. */
  readonly scope: string;
  /** The set of what this process holds names the user. */
  isNoted = false;
  /** Some of its changes are being written. */
  isOnItsWay = false;
  readonly #stays = new Map<string, Stay>();
  readonly #changes = new Map<string, Kind>();
  #waiting: (() => void)[] = [];

  constructor(
    readonly tenant: string,
    readonly user: string,
  ) {
    this.scope = scoped(tenant, user);
  }

  get isEmpty(): boolean {
    return this.#stays.size === 0;
  }

  get hasChanges(): boolean {
    return this.#changes.size > 0;
  }

  stays(): IterableIterator<[string, Stay]> {
    return this.#stays.entries();
  }

  holds(field: string, stay: Stay): boolean {
    return this.#stays.get(field) === stay;
  }

  /** A newer connection of the same socket takes the place of the one that was there. */
  enter(field: string, cameAt: number): Stay {
    const old = this.#stays.get(field);
    const stay = { cameAt, isWritten: old?.isWritten === true || this.#changes.get(field) === 'leave' };
    this.#stays.set(field, stay);
    this.#changes.set(field, 'take');
    return stay;
  }

  leave(field: string, stay: Stay): void {
    if (!this.holds(field, stay)) return;
    this.#stays.delete(field);
    // what came and went while Redis was away leaves nothing to be told
    if (stay.isWritten) this.#changes.set(field, 'leave');
    else this.#changes.delete(field);
  }

  /** Redis may have lost all of it. */
  reassert(): void {
    this.isNoted = false;
    for (const field of this.#stays.keys()) if (!this.#changes.has(field)) this.#changes.set(field, 'again');
  }

  /** Resolves when what is to be written by now was written, or could not be. */
  whenTried(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Up to `most` changes, which are on their way from now on, and whom to tell when they have arrived. */
  handOut(most: number, now: number): Written {
    const changes: Change[] = [];
    for (const [field, kind] of this.#changes) {
      if (changes.length >= most) break;
      const stay = this.#stays.get(field);
      if (stay) stay.isWritten = true;
      changes.push({ field, kind, ageMs: stay ? Math.max(0, Math.round(now - stay.cameAt)) : 0 });
      this.#changes.delete(field);
    }
    return { holding: this, changes, waiting: this.takeWaiting() };
  }

  /** Whom to tell that it was tried. */
  takeWaiting(): readonly (() => void)[] {
    const waiting = this.#waiting;
    this.#waiting = [];
    return waiting;
  }

  /** It is not known whether they were written. What happened since goes first. */
  giveBack(changes: readonly Change[]): void {
    for (const { field, kind } of changes)
      if (!this.#changes.has(field)) this.#changes.set(field, kind === 'take' ? 'again' : kind);
  }
}
