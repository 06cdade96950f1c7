import { Decoder, type Packet } from 'socket.io-parser';
import { formatPosition } from '../../wire/position.js';
import type { Entry } from '../entry.js';

/** What `console.log` asks an object for. */
const INSPECT = Symbol.for('nodejs.util.inspect.custom');

/** An entry of the log, as a group's handler gets it. What it holds is decoded when it is asked for. */
export class GroupEntry {
  readonly partition: number;
  /** 1, 2, 3 … in its partition, within one epoch. */
  readonly offset: number;
  /** 1 at the first time. A redriven entry begins anew. */
  readonly deliveries: number;
  /** It was a dead letter that somebody sent back. */
  readonly isRedriven: boolean;
  readonly #entry: Entry;
  readonly #epoch: string;
  #parsed: readonly [event: string, data: unknown, meta?: unknown] | undefined;

  constructor(entry: Entry, partition: number, epoch: string, deliveries: number, isRedriven: boolean) {
    this.#entry = entry;
    this.#epoch = epoch;
    this.partition = partition;
    this.offset = entry.offset;
    this.deliveries = deliveries;
    this.isRedriven = isRedriven;
  }

  /** `<epoch>:<partition>:<ms>-<offset>`: unlike any other entry's for ever, and so a fence for side effects. */
  get position(): string {
    return formatPosition(this.#epoch, this.partition, this.#entry.ms, this.offset);
  }

  /** When Redis took it. */
  get at(): Date {
    return new Date(this.#entry.ms);
  }

  get event(): string {
    return this.#payload[0];
  }

  get data(): unknown {
    return this.#payload[1];
  }

  /** The event's id: its publisher's own, if it set one. */
  get id(): string {
    return this.#entry.header.id;
  }

  get tenant(): string {
    return decodeURIComponent(firstPart(this.#entry.header.publisher));
  }

  /** Who published it, such as `user:ann` or `key:…`. */
  get publisher(): string {
    const { publisher } = this.#entry.header;
    return decodeURIComponent(publisher.slice(firstPart(publisher).length + 1));
  }

  /** Rooms that it went to; none for what was appended for groups only. */
  get rooms(): readonly string[] {
    return this.#entry.header.rooms.map((room) => decodeURIComponent(room.slice(firstPart(room).length + 1)));
  }

  /** All of it, for logs and for `JSON.stringify`. */
  toJSON(): object {
    const { position, at, tenant, publisher, id, rooms, event, data, deliveries, isRedriven } = this;
    return { position, at, tenant, publisher, id, rooms, event, data, deliveries, isRedriven };
  }

  [INSPECT](): object {
    return this.toJSON();
  }

  /** The same entry at a later delivery. */
  redelivered(deliveries: number): GroupEntry {
    return new GroupEntry(this.#entry, this.partition, this.#epoch, deliveries, this.isRedriven);
  }

  get #payload(): readonly [event: string, data: unknown, meta?: unknown] {
    this.#parsed ??= parse(this.#entry);
    return this.#parsed;
  }
}

function firstPart(scopedName: string): string {
  const end = scopedName.indexOf('/');
  return end < 0 ? scopedName : scopedName.slice(0, end);
}

function parse({ payload, attachments }: Entry): readonly [string, unknown] {
  if (attachments.length === 0) return JSON.parse(payload.toString('utf8')) as [string, unknown];
  const decoder = new Decoder({ maxAttachments: Number.POSITIVE_INFINITY });
  let packet: Packet | undefined;
  decoder.on('decoded', (decoded: Packet) => {
    packet = decoded;
  });
  decoder.add(`5${attachments.length}-${payload.toString('utf8')}`);
  for (const attachment of attachments) decoder.add(attachment);
  if (!packet) throw new Error('an entry without its attachments');
  return packet.data as [string, unknown];
}
