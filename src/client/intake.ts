import { parsePosition } from '../wire/position.js';
import type { EventMap, Gap, RelayEvent } from './events.js';
import { fingerprint } from './fingerprint.js';
import type { Progress } from './progress.js';
import type { Room } from './room.js';
import { Seen } from './seen.js';

export interface IntakeOptions<Events extends EventMap> {
  readonly rooms: ReadonlyMap<string, Room<Events>>;
  readonly progress: Progress;
  readonly rememberedEvents: number;
  /** A buffer is full: from now on what comes is left in the log. */
  readonly onLag: (room: Room<Events>) => void;
  readonly onGap: (gap: Gap) => void;
  /** The relay doesn't know the place that was to be gone on from. */
  readonly onLost: () => void;
  /** An event that nobody has subscribed. */
  readonly onUnwanted: (room: string) => void;
}

/** What the relay sends, on its way to the subscriptions: each event once, in order, and never more than their buffers hold. */
export class Intake<Events extends EventMap> {
  /** The newest position that was taken, handled or not. */
  received: string | undefined;
  isLagging = false;
  /** What a connection that is not recovered should go on behind, until its first position shows whether it does. */
  #expected: string | undefined;
  readonly #seen: Seen;

  constructor(private readonly options: IntakeOptions<Events>) {
    this.#seen = new Seen(options.rememberedEvents);
  }

  /** What comes is of a new connection. */
  begin(isRecovered: boolean): void {
    this.isLagging = false;
    this.#expected = isRecovered ? undefined : this.received;
  }

  take(event: string, args: readonly unknown[]): void {
    if (event === 'holdfast:position') return this.#takePosition(args[0]);
    if (event === 'holdfast:gap') return this.#takeGap(args[0] as Gap);
    const [data, meta, last] = args as [unknown, { room: string; id: string; at: number } | undefined, unknown];
    if (typeof meta !== 'object' || meta === null || typeof meta.room !== 'string') return;
    const { room: name, id, at } = meta;
    const position = parsePosition(last) ? (last as string) : undefined;
    const taken = { event, data, room: name, id, at, position } as RelayEvent<Events>;
    const room = this.options.rooms.get(name);
    if (position !== undefined) return this.#takePlaced(taken, position, room);
    if (!room || room.isStale) return;
    if (!room.isJoined && room.from !== undefined) this.#takeReplayed(taken, room);
    // ephemeral: at most once, and nobody waits for it
    else if (!room.isFull) room.push(taken, () => {});
  }

  #takePlaced(event: RelayEvent<Events>, position: string, room: Room<Events> | undefined): void {
    const { progress, onLag, onUnwanted } = this.options;
    if (this.isLagging) return;
    this.#checkPlace(position);
    if (!this.#isAhead(position)) return;
    if (room?.isFull && !room.isStale) {
      this.isLagging = true;
      return onLag(room);
    }
    this.received = position;
    if (room && !room.isStale && !this.#isRepeated(event))
      return room.push(event, progress.begin(position, room.subscriptions.size));
    if (!room) onUnwanted(event.room);
    progress.pass(position);
  }

  #takeReplayed(event: RelayEvent<Events>, room: Room<Events>): void {
    if (room.isCut) return;
    const print = fingerprint(event.event, event.id, event.at, event.data);
    if (room.replay.isKnown(print)) return;
    if (room.isFull) {
      room.isCut = true;
      this.isLagging = true;
      return this.options.onLag(room);
    }
    room.replay.take(print);
    if (!this.#isRepeated(event)) room.push(event, () => {});
  }

  #takePosition(position: unknown): void {
    if (this.isLagging || !parsePosition(position)) return;
    this.#checkPlace(position as string);
    if (!this.#isAhead(position as string)) return;
    this.received = position as string;
    this.options.progress.pass(position as string);
  }

  #takeGap(gap: Gap): void {
    // it is told again when the connection comes back for what was not taken
    if (!this.isLagging) this.options.onGap(gap);
  }

  #isAhead(position: string): boolean {
    const [next, last] = [parsePosition(position), parsePosition(this.received)];
    if (!next || !last || next.epoch !== last.epoch || next.partition !== last.partition) return true;
    return next.offset > last.offset;
  }

  /** A place that the relay doesn't know is answered by a fresh start, without a word. */
  #checkPlace(position: string): void {
    const [now, expected] = [parsePosition(position), parsePosition(this.#expected)];
    this.#expected = undefined;
    if (!now || !expected) return;
    const isSameLog = now.partition === expected.partition;
    if (isSameLog && (now.epoch !== expected.epoch || now.offset >= expected.offset)) return;
    this.received = undefined;
    this.options.onLost();
  }

  #isRepeated({ room, id, at, event, data, position }: RelayEvent<Events>): boolean {
    const epoch = parsePosition(position ?? this.received)?.epoch;
    return this.#seen.isRepeated(room, id, { print: fingerprint(event, data), at, epoch });
  }
}
