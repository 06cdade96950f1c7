import { Decoder, type Packet } from 'socket.io-parser';
import type { Entry } from '../log/index.js';
import type { EntryHeader } from '../wire/envelope.js';
import { formatPosition } from '../wire/position.js';

const MESSAGE = 0x34; // '4', engine.io's packet type
const TEXT = 1;
const BINARY = 2;
const SLAB_BYTES = 256 * 1024;

/** The options of an engine.io write that hand ready WebSocket frames to the transport. */
export interface FrameOptions {
  readonly preEncoded: true;
  readonly compress: false;
  readonly wsPreEncodedFrame: readonly [Buffer];
}

/** One Socket.IO packet: its text, then its binary attachments. */
export type PacketParts = readonly [string, ...Buffer[]];

/** Packets that were encoded once, as WebSocket frames in one piece, and are shared by all sockets that get them. */
export class Parcel {
  readonly options: FrameOptions;

  constructor(readonly frames: Buffer) {
    this.options = { preEncoded: true, compress: false, wsPreEncodedFrame: [frames] };
  }

  get bytes(): number {
    return this.frames.length;
  }

  /** For what takes no frames: HTTP long-polling, listeners, other encoders. */
  packets(): PacketParts[] {
    const packets: [string, ...Buffer[]][] = [];
    for (const { opcode, start, end } of split(this.frames)) {
      if (opcode === TEXT) packets.push([this.frames.toString('utf8', start + 1, end)]);
      else packets.at(-1)?.push(this.frames.subarray(start, end));
    }
    return packets;
  }
}

/** A packet as Socket.IO's own parser sees it. */
export function decodePacket([text, ...attachments]: PacketParts): Packet & { data: unknown[] } {
  // how many a receiver takes is its own affair
  const decoder = new Decoder({ maxAttachments: Number.POSITIVE_INFINITY });
  let packet: Packet | undefined;
  decoder.on('decoded', (decoded: Packet) => {
    packet = decoded;
  });
  decoder.add(text);
  for (const attachment of attachments) decoder.add(attachment);
  if (!packet) throw new Error('a packet without its attachments');
  return packet as Packet & { data: unknown[] };
}

/** In one piece, and in their order. */
export function joinParcels(parcels: readonly Parcel[]): Parcel {
  if (parcels.length === 1) return parcels[0] as Parcel;
  let length = 0;
  for (const { frames } of parcels) length += frames.length;
  const whole = Buffer.allocUnsafeSlow(length);
  let at = 0;
  for (const { frames } of parcels) {
    whole.set(frames, at);
    at += frames.length;
  }
  return new Parcel(whole);
}

/**
 * Memory for frames that are made one after another and die one after another, as in a ring: many share one allocation, which
 * goes when the last of them does. What lives for another time needs slabs of its own.
 */
export class Slabs {
  #slab = Buffer.alloc(0);
  #used = 0;

  allocate(bytes: number): { readonly slab: Buffer; readonly start: number } {
    if (bytes > SLAB_BYTES / 4) return { slab: Buffer.allocUnsafeSlow(bytes), start: 0 };
    if (this.#used + bytes > this.#slab.length) {
      this.#slab = Buffer.allocUnsafeSlow(SLAB_BYTES);
      this.#used = 0;
    }
    const start = this.#used;
    this.#used += bytes;
    return { slab: this.#slab, start };
  }
}

/** For what is written at once and not kept. */
const PASSING = { allocate: (bytes: number) => ({ slab: Buffer.allocUnsafe(bytes), start: 0 }) };

/**
 * A published event as a Socket.IO packet. `payload` is the JSON array `[event, …]`; the position is spliced in behind it, and
 * nothing is parsed or stringified again.
 */
export function encodeEvent(
  payload: Uint8Array,
  attachments: readonly Uint8Array[],
  position: string | undefined,
  namespace = '/',
): Parcel {
  const { slab, start, end } = writeEvent(PASSING, payload, attachments, position, namespace);
  return new Parcel(slab.subarray(start, end));
}

/** An entry of the log with its packet, which all its receivers share. */
export class Delivery {
  readonly offset: number;
  readonly ms: number;
  readonly header: EntryHeader;
  /** Bytes that it takes in memory. */
  readonly size: number;
  // a Buffer for each entry that nobody here may ask for would be what the garbage collector carries about
  readonly #slab: Buffer;
  readonly #start: number;
  readonly #end: number;
  #parcel: Parcel | undefined;

  /** @param place of its position, which clients get; none: they get no positions */
  constructor(entry: Entry, place: { readonly epoch: string; readonly partition: number } | undefined, slabs: Slabs) {
    const { offset, ms, header, size, payload, attachments } = entry;
    this.offset = offset;
    this.ms = ms;
    this.header = header;
    this.size = size;
    const position = place && formatPosition(place.epoch, place.partition, ms, offset);
    const { slab, start, end } = writeEvent(slabs, payload, attachments, position, header.namespace);
    this.#slab = slab;
    this.#start = start;
    this.#end = end;
  }

  get parcel(): Parcel {
    this.#parcel ??= new Parcel(this.#slab.subarray(this.#start, this.#end));
    return this.#parcel;
  }
}

function writeEvent(
  memory: Pick<Slabs, 'allocate'>,
  payload: Uint8Array,
  attachments: readonly Uint8Array[],
  position: string | undefined,
  namespace: string,
): { readonly slab: Buffer; readonly start: number; readonly end: number } {
  const type = attachments.length > 0 ? `5${attachments.length}-` : '2';
  const lead = namespace === '/' ? type : `${type}${namespace},`;
  const tail = position === undefined ? ']' : `,"${position}"]`;
  const bodyLength = payload.length - 1;
  const length = 1 + Buffer.byteLength(lead) + bodyLength + tail.length;
  let whole = headerBytes(length) + length;
  for (const { length: size } of attachments) whole += headerBytes(size) + size;
  const { slab, start } = memory.allocate(whole);
  let at = writeHeader(slab, start, TEXT, length);
  slab[at++] = MESSAGE;
  at += slab.write(lead, at);
  slab.set(payload.subarray(0, bodyLength), at);
  at += bodyLength;
  at += slab.write(tail, at, 'latin1');
  for (const attachment of attachments) {
    at = writeHeader(slab, at, BINARY, attachment.length);
    slab.set(attachment, at);
    at += attachment.length;
  }
  return { slab, start, end: at };
}

// --- WebSocket frames, unmasked as a server writes them (RFC 6455, 5.2)

function headerBytes(length: number): number {
  return length < 126 ? 2 : length < 65_536 ? 4 : 10;
}

function writeHeader(frames: Buffer, at: number, opcode: number, length: number): number {
  frames[at] = 0x80 | opcode;
  if (length < 126) {
    frames[at + 1] = length;
    return at + 2;
  }
  if (length < 65_536) {
    frames[at + 1] = 126;
    return frames.writeUInt16BE(length, at + 2);
  }
  frames[at + 1] = 127;
  return frames.writeBigUInt64BE(BigInt(length), at + 2);
}

function* split(frames: Buffer): Generator<{ opcode: number; start: number; end: number }> {
  for (let at = 0; at < frames.length; ) {
    const opcode = (frames[at] as number) & 15;
    const short = frames[at + 1] as number;
    const length =
      short < 126 ? short : short === 126 ? frames.readUInt16BE(at + 2) : Number(frames.readBigUInt64BE(at + 2));
    const start = at + headerBytes(length);
    at = start + length;
    yield { opcode, start, end: at };
  }
}
