import type { RelayError } from '../core/errors.js';
import { type Answer, type AskOptions, ask, inTurns } from './ask.js';
import type { EventMap } from './events.js';
import type { Room } from './room.js';

/** The relay answers a subscribe when its replay has left, which can take long. */
const ANSWER_MS = 60_000;

export interface MembershipOptions<Events extends EventMap> extends AskOptions {
  readonly rooms: Map<string, Room<Events>>;
  /** Where the socket stands: taken, and handled. */
  readonly place: () => { readonly received: string | undefined; readonly handled: string | undefined };
  /** What the store says of the rooms has changed. */
  readonly onChange: () => void;
  readonly onResync: (reason: 'gap' | 'lost') => void;
  /** A room is gone: it takes nothing any more that others would have to wait for. */
  readonly onGone: () => void;
}

/** Sees to it that the relay has the rooms that are subscribed, and no others, on every connection. */
export class Membership<Events extends EventMap> {
  readonly #leaving = new Set<string>();

  constructor(private readonly options: MembershipOptions<Events>) {}

  /** Resolves when all rooms are joined, or the connection is another. */
  async connected(isRecovered: boolean): Promise<void> {
    if (!isRecovered) this.#leaving.clear();
    for (const name of this.#leaving) void this.#leave(name);
    const rooms = [...this.options.rooms.values()].filter((room) => !isRecovered || !room.isJoined);
    for (const room of rooms) this.#behind(room, isRecovered && room.from !== undefined);
    await this.#joinAll(rooms);
  }

  /** The relay may have dropped some. */
  async rejoin(): Promise<void> {
    const rooms = [...this.options.rooms.values()];
    for (const room of rooms) this.#behind(room, false);
    await this.#joinAll(rooms);
  }

  /** A room that is new. Without a connection it is joined when there is one. */
  added(room: Room<Events>): void {
    this.#leaving.delete(room.name);
    room.isStale = room.from !== undefined;
    if (this.options.connection.isConnected) void this.#join(room);
  }

  /** What can't be told now is told when the connection is back; what the room brings meanwhile reaches nobody. */
  removed(name: string): Promise<void> {
    this.#leaving.add(name);
    return this.#leave(name);
  }

  async #leave(name: string): Promise<void> {
    try {
      const answer = await this.#ask('unsubscribe', { room: name }, () => this.#leaving.has(name));
      if (answer) this.#leaving.delete(name);
    } catch {
      // a room that the relay refuses to leave is none that it has
      this.#leaving.delete(name);
    }
  }

  #joinAll(rooms: readonly Room<Events>[]): Promise<void> {
    return inTurns(rooms, (room) => this.#join(room));
  }

  /** One that has begun must not miss what was published since; one that hasn't begins now. */
  #behind(room: Room<Events>, wasCut: boolean): void {
    const { received, handled } = this.options.place();
    room.isJoined = false;
    if (room.hasBegun) room.catchUp(received, handled);
    if (room.hasBegun && room.from === undefined) this.options.onResync('lost');
    room.isStale = room.from !== undefined && (wasCut || room.from !== received);
  }

  #join(room: Room<Events>): Promise<void> {
    const { session } = this.options.connection;
    // a second subscribe would replay it twice
    if (room.joining?.session !== session)
      room.joining = {
        session,
        end: this.#subscribe(room).finally(() => {
          if (room.joining?.session === session) room.joining = undefined;
        }),
      };
    return room.joining.end;
  }

  async #subscribe(room: Room<Events>): Promise<void> {
    const { rooms, onChange, onResync, onError, onGone } = this.options;
    const isWanted = (): boolean => rooms.get(room.name) === room && !room.isJoined;
    try {
      if (room.isStale && !(await this.#ask('unsubscribe', { room: room.name }, isWanted))) return;
      const { from } = room;
      room.isStale = false;
      room.isCut = false;
      room.replay.rewind();
      const payload = { room: room.name, ...(from !== undefined && { from }) };
      const answer = await this.#ask('subscribe', payload, isWanted);
      // one that was cut is joined again when the buffer has room
      if (!answer || room.isCut) return;
      if (answer.recovered === false) onResync('gap');
      room.joined(answer.position as string, onChange);
      onChange();
    } catch (cause) {
      const error = cause as RelayError;
      if (!isWanted()) return;
      if (error.code === 'bad_request' && room.from !== undefined) {
        // no position of this log: there is nothing to go on from
        room.startAfresh();
        onResync('lost');
        return this.#subscribe(room);
      }
      rooms.delete(room.name);
      room.end({ error, isHandled: true }, error);
      onChange();
      onError(error);
      onGone();
    }
  }

  #ask(command: string, payload: object, isWanted: () => boolean): Promise<Answer | undefined> {
    return ask(this.options, command, payload, ANSWER_MS, isWanted);
  }
}
