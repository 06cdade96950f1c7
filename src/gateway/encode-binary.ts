import { Encoder, PacketType } from 'socket.io-parser';
import { RelayError } from '../core/errors.js';
import type { EncodedEvent } from '../wire/event.js';

/** Stock parsers, ours and every receiver's, refuse more and close their connection. */
const MAX_ATTACHMENTS = 10;
const encoder = new Encoder();

/**
 * What JSON can't hold goes beside it, as Socket.IO has it.
 *
 * @throws {RelayError} `bad_request` for more than 10 binary parts
 */
export function encodeBinary(args: readonly unknown[]): EncodedEvent<Buffer> {
  const packet = { type: PacketType.EVENT, nsp: '/', data: args };
  const [text, ...parts] = encoder.encode(packet) as [string, ...unknown[]];
  if (parts.length > MAX_ATTACHMENTS)
    throw new RelayError('bad_request', `data: at most ${MAX_ATTACHMENTS} binary parts`);
  return {
    payload: text.slice(text.indexOf('-') + 1),
    attachments: parts.map((part) => Buffer.from(part as Uint8Array)),
  };
}
