import { Decoder, type Packet } from 'socket.io-parser';
import { decodeHeader, type EntryHeader } from '../../wire/envelope.js';
import { formatPosition } from '../../wire/position.js';
import type { Entry } from '../entry.js';

/** What `console.log` asks an object for. */
const INSPECT = Symbol.for('nodejs.util.inspect.custom');

/** An entry as the log holds it: its texts, not yet looked into. */
export interface EntryText {
  readonly ms: number;
  readonly offset: number;
  /** JSON, or what it says. */
  readonly header: string | EntryHeader;
  /** The JSON array `[event, data, meta]`. */
  readonly payload: string;
  readonly attachments: readonly Buffer[];
}

type Payload = readonly [event: string, data: unknown, meta?: unknown];

/** An entry of the log, as a group's handler gets it. What it holds is decoded when it is asked for. */
export class GroupEntry {
  readonly #text: EntryText;
  readonly #epoch: string;
  #header: EntryHeader | undefined;
  #payload: Payload | undefined;

  constructor(
    text: EntryText,
    epoch: string,
    readonly partition: number,
    /** 1 at the first time. A redriven entry begins anew. */
    readonly deliveries: number,
    /** It was a dead letter that somebody sent back. */
    readonly isRedriven: boolean,
  ) {
    this.#text = text;
    this.#epoch = epoch;
  }

  /** What was read in another way, as a handler would get it at its first delivery. */
  static of({ payload, ...entry }: Entry, partition: number, epoch: string): GroupEntry {
    return new GroupEntry({ ...entry, payload: payload.toString('utf8') }, epoch, partition, 1, false);
  }

  /** 1, 2, 3 … in its partition, within one epoch. */
  get offset(): number {
    return this.#text.offset;
  }

  /** `<epoch>:<partition>:<ms>-<offset>`: unlike any other entry's for ever, and so a fence for side effects. */
  get position(): string {
    return formatPosition(this.#epoch, this.partition, this.#text.ms, this.#text.offset);
  }

  /** When Redis took it. */
  get at(): Date {
    return new Date(this.#text.ms);
  }

  get event(): string {
    return this.#decoded[0];
  }

  get data(): unknown {
    return this.#decoded[1];
  }

  /** The event's id: its publisher's own, if it set one. */
  get id(): string {
    return this.#head.id;
  }

  get tenant(): string {
    return decodeURIComponent(firstPart(this.#head.publisher));
  }

  /** Who published it, such as `user:ann` or `key:…`. */
  get publisher(): string {
    return decodeURIComponent(afterFirstPart(this.#head.publisher));
  }

  /** Rooms that it went to; none for what was appended for groups only. */
  get rooms(): readonly string[] {
    return this.#head.rooms.map((room) => decodeURIComponent(afterFirstPart(room)));
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
    return new GroupEntry(this.#text, this.#epoch, this.partition, deliveries, this.isRedriven);
  }

  get #head(): EntryHeader {
    const { header } = this.#text;
    this.#header ??= typeof header === 'string' ? (decodeHeader(header) as EntryHeader) : header;
    return this.#header;
  }

  get #decoded(): Payload {
    this.#payload ??= decode(this.#text);
    return this.#payload;
  }
}

function firstPart(scopedName: string): string {
  const end = scopedName.indexOf('/');
  return end < 0 ? scopedName : scopedName.slice(0, end);
}

function afterFirstPart(scopedName: string): string {
  return scopedName.slice(firstPart(scopedName).length + 1);
}

function decode({ payload, attachments }: EntryText): Payload {
  if (attachments.length === 0) return JSON.parse(payload) as Payload;
  const decoder = new Decoder({ maxAttachments: Number.POSITIVE_INFINITY });
  let packet: Packet | undefined;
  decoder.on('decoded', (decoded: Packet) => {
    packet = decoded;
  });
  decoder.add(`5${attachments.length}-${payload}`);
  for (const attachment of attachments) decoder.add(attachment);
  if (!packet) throw new Error('an entry without its attachments');
  return packet.data as unknown as Payload;
}
