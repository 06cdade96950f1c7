import { PacketType } from 'socket.io-parser';
import type { PacketEncoder } from '../gateway/outbox.js';

/**
 * The server's encoder if it writes anything else than Socket.IO's default one does (its option `parser`, a `replacer`), else
 * `undefined`: then ready frames may be written past it.
 */
export function ownEncoderOf(encoder: PacketEncoder): PacketEncoder | undefined {
  try {
    const text = encoder.encode({ type: PacketType.EVENT, nsp: '/', data: ['a', { b: 'c' }] });
    const binary = encoder.encode({ type: PacketType.EVENT, nsp: '/n', data: ['a', Buffer.from([7])] });
    const isDefault =
      (encoder as { replacer?: unknown }).replacer === undefined &&
      text.length === 1 &&
      text[0] === '2["a",{"b":"c"}]' &&
      binary.length === 2 &&
      binary[0] === '51-/n,["a",{"_placeholder":true,"num":0}]';
    return isDefault ? undefined : encoder;
  } catch {
    return encoder;
  }
}
