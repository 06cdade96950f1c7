export type Room = string | number;

const NONE: readonly Room[] = [];

/**
 * A namespace's rooms as the log names them. No two rooms of all namespaces share a key; a room that is a number stays
 * another one than its digits, as in Socket.IO.
 */
export class RoomKeys {
  /** The room that every socket of the namespace is in. */
  readonly everyone: string;

  constructor(namespace: string) {
    // a namespace that was made with half a surrogate can't be asked for by any client
    this.everyone = encodeURIComponent(namespace.replaceAll(/\p{Surrogate}/gu, '\ufffd'));
  }

  keyOf(room: Room): string {
    return typeof room === 'number' ? `${this.everyone}#${room}` : `${this.everyone}/${room}`;
  }

  /** The rooms of a broadcast; none means everyone. */
  targets(rooms: ReadonlySet<Room>): string[] {
    return rooms.size === 0 ? [this.everyone] : this.keysOf(rooms);
  }

  keysOf(rooms: Iterable<Room> | undefined): string[] {
    const keys: string[] = [];
    for (const room of rooms ?? NONE) keys.push(this.keyOf(room));
    return keys;
  }

  /** `undefined` for the room of everyone. */
  roomOf(key: string): Room | undefined {
    if (key === this.everyone) return undefined;
    const rest = key.slice(this.everyone.length + 1);
    return key[this.everyone.length] === '#' ? Number(rest) : rest;
  }
}
