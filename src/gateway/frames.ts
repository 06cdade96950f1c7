import type { Entry } from '../log/index.js';

const MESSAGE = 0x34; // '4', engine.io's packet type
const BYTES_OF_BIG_HEADER = 10;

/** An unmasked WebSocket frame, as a server writes it. */
function frame(opcode: 1 | 2, length: number): Buffer {
  if (length < 126) return Buffer.from([0x80 | opcode, length]);
  if (length < 65_536) return Buffer.from([0x80 | opcode, 126, length >> 8, length & 255]);
  const header = Buffer.alloc(BYTES_OF_BIG_HEADER);
  header[0] = 0x80 | opcode;
  header[1] = 127;
  header.writeBigUInt64BE(BigInt(length), 2);
  return header;
}

/** A packet in the two forms in which transports want it. Encoded once, shared by all sockets that get it. */
export interface EncodedPacket {
  /** Socket.IO packet text, then its binary attachments: for HTTP long-polling. */
  readonly parts: () => readonly (string | Buffer)[];
  /** The same as WebSocket frames in one piece. */
  readonly frames: Buffer;
}

/**
 * A published event as a Socket.IO packet. `payload` is the JSON array `[event, data, meta]`; the position is spliced in
 * behind it, and nothing is parsed or stringified again.
 */
export function encodeEvent(
  payload: Buffer,
  attachments: readonly Buffer[],
  position: string | undefined,
): EncodedPacket {
  const type = attachments.length > 0 ? `5${attachments.length}-` : '2';
  const end = position === undefined ? ']' : `,"${position}"]`;
  const body = payload.subarray(0, payload.length - 1);
  const length = 1 + type.length + body.length + end.length;
  const pieces = [
    frame(1, length),
    Buffer.from([MESSAGE]),
    Buffer.from(type, 'latin1'),
    body,
    Buffer.from(end, 'latin1'),
  ];
  for (const attachment of attachments) pieces.push(frame(2, attachment.length), attachment);
  return {
    frames: Buffer.concat(pieces),
    parts: () => [`${type}${body.toString('utf8')}${end}`, ...attachments],
  };
}

/** An entry of the log with its packets, which all its receivers share. */
export class Delivery {
  #withPosition: EncodedPacket | undefined;
  #replayed: EncodedPacket | undefined;

  constructor(
    readonly entry: Entry,
    private readonly position: string,
  ) {}

  get offset(): number {
    return this.entry.offset;
  }

  /** As live and recovered sockets get it: the position comes last. */
  get packet(): EncodedPacket {
    this.#withPosition ??= encodeEvent(this.entry.payload, this.entry.attachments, this.position);
    return this.#withPosition;
  }

  /** As `subscribe.from` replays it: without a position, which would move the client's own. */
  get replayPacket(): EncodedPacket {
    this.#replayed ??= encodeEvent(this.entry.payload, this.entry.attachments, undefined);
    return this.#replayed;
  }
}
