import type { Socket } from 'socket.io';
import type { Hub } from '../gateway/hub.js';
import { Resumable, type ResumableContext, type ResumePlace } from '../gateway/resumable.js';
import type { Subscriber } from '../gateway/subscriber.js';
import { parse, stringify } from './codec.js';
import type { Room, RoomKeys } from './room-keys.js';

/** What a client needs to go on elsewhere, as it is stored. */
export interface SessionState extends ResumePlace {
  /** Rooms, each with the offset at which it was joined. */
  readonly rooms: readonly (readonly [Room, number])[];
  /** `socket.data`, as `codec.ts` writes it; absent if it can't be written. */
  readonly data?: string;
}

export function dataOf({ data }: SessionState): unknown {
  return data === undefined ? {} : parse(data);
}

/** One socket of a server with connection state recovery. */
export class AdapterSession extends Resumable<SessionState> {
  /** Socket.IO says that its client may come back. */
  isRecoverable = false;
  #savedData: string | undefined;

  constructor(
    readonly socket: Socket,
    subscriber: Subscriber,
    pid: string,
    owner: string,
    private readonly keys: RoomKeys,
    context: ResumableContext<SessionState>,
  ) {
    super(subscriber, pid, owner, context);
  }

  override get isStale(): boolean {
    return super.isStale || this.#data() !== this.#savedData;
  }

  state(): SessionState {
    const { subscriber, socket, keys } = this;
    const rooms: [Room, number][] = [];
    for (const [key, offset] of subscriber.joins) {
      const room = keys.roomOf(key);
      if (room !== undefined) rooms.push([room, offset]);
    }
    this.#savedData = this.#data();
    return {
      ...this.placeOf(socket),
      rooms,
      ...(this.#savedData !== undefined && { data: this.#savedData }),
    };
  }

  protected onSuperseded(): void {
    this.subscriber.outbox.cut();
  }

  /** The connection is gone. */
  async end(hub: Hub): Promise<void> {
    const released = this.release(!this.isRecoverable);
    hub.remove(this.subscriber);
    await released;
  }

  #data(): string | undefined {
    try {
      return stringify(this.socket.data);
    } catch {
      // it refers to itself, or holds what JSON can't
      return undefined;
    }
  }
}
