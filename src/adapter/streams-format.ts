import { decode, encode } from '@msgpack/msgpack';
import { type BroadcastOptions, MessageType } from 'socket.io-adapter';
import { PacketType } from 'socket.io-parser';
import type { AppendRequest, Entry } from '../log/index.js';
import { encodeEntry } from '../wire/envelope.js';
import { encodeArguments } from './codec.js';
import type { BridgeSettings } from './options.js';
import { type Room, RoomKeys } from './room-keys.js';

/**
 * What the streams adapter has in its stream and on its channels. An entry has the fields `uid` (who wrote it), `nsp`, `type` and
 * `data`: JSON, or msgpack in base64 where something binary is in it. On channels it is all msgpack.
 */
export interface StreamsMessage {
  readonly uid: string;
  readonly nsp: string;
  readonly type: MessageType;
  readonly data: Readonly<Record<string, unknown>>;
}

/** Publisher of what came from the old stream: it doesn't go back there. */
export const CARRIED = 'socket.io';
/** An emitter's: old servers of 0.2 count whoever else writes as one of them, and would wait for its answers. */
const WRITER = 'emitter';
/** Field of what a bridge wrote; old servers don't look at it. */
const MARK = 'holdfast';

/** A namespace's stream. With several, old servers choose by a hash that may be negative, and read none of those streams. */
export function streamOf(namespace: string, { streamName, streamCount }: BridgeSettings): string {
  if (streamCount === 1) return streamName;
  let hash = 0;
  for (let i = 0; i < namespace.length; i++) hash = (hash * 31 + namespace.charCodeAt(i)) | 0;
  return `${streamName}-${Math.abs(hash % streamCount)}`;
}

/** Every stream that old servers write to. */
export function streamsOf({ streamName, streamCount }: BridgeSettings): string[] {
  if (streamCount === 1) return [streamName];
  return Array.from({ length: 2 * streamCount - 1 }, (_, i) => `${streamName}-${i - streamCount + 1}`);
}

export function encodeMessage(message: object): Buffer {
  const { buffer, byteOffset, byteLength } = encode(message);
  return Buffer.from(buffer, byteOffset, byteLength);
}

/** `undefined`: no message. */
export function decodeMessage(payload: Uint8Array): StreamsMessage | undefined {
  try {
    return messageOf(decode(payload) as Partial<StreamsMessage>);
  } catch {
    return undefined;
  }
}

/** `undefined`: none of theirs. `'own'`: a bridge wrote it. */
export function decodeFields(fields: readonly string[]): StreamsMessage | 'own' | undefined {
  const found: Record<string, string> = {};
  for (let i = 0; i + 1 < fields.length; i += 2) found[fields[i] as string] = fields[i + 1] as string;
  const { uid, nsp, type, data = '{}' } = found;
  if (found[MARK] !== undefined) return 'own';
  try {
    const parsed: unknown = data.startsWith('{') ? JSON.parse(data) : decode(Buffer.from(data, 'base64'));
    return messageOf({ uid, nsp, type: Number(type), data: parsed as StreamsMessage['data'] });
  } catch {
    return undefined;
  }
}

function messageOf({ uid, nsp, type, data }: Partial<StreamsMessage>): StreamsMessage | undefined {
  if (typeof uid !== 'string' || typeof nsp !== 'string' || !Number.isInteger(type)) return undefined;
  return typeof data === 'object' && data !== null ? { uid, nsp, type: type as MessageType, data } : undefined;
}

/**
 * What an old server's entry becomes in the log; `undefined` for what is no broadcast, join, leave or disconnect.
 *
 * @throws {TypeError} for what JSON can't hold
 */
export function toLog({ nsp, type, data }: StreamsMessage, id: string): AppendRequest | undefined {
  const { rooms = [], except = [] } = (data.opts ?? {}) as { rooms?: Room[]; except?: Room[] };
  const keys = new RoomKeys(nsp);
  const common = { rooms: keys.targets(new Set(rooms)), except: keys.keysOf(except), namespace: nsp, id };
  const header = { ...common, publisher: CARRIED };
  switch (type) {
    case MessageType.BROADCAST: {
      const packet = data.packet as { type?: number; data?: unknown } | undefined;
      // whoever waits for acks asks on the channel; a stream has such requests from 0.2 only
      if (data.requestId !== undefined || packet?.type !== PacketType.EVENT || !Array.isArray(packet.data))
        return undefined;
      const { payload, attachments } = encodeArguments(packet.data);
      return { body: encodeEntry({ ...header, kind: 'event' }, payload), attachments };
    }
    case MessageType.SOCKETS_JOIN:
      return { body: encodeEntry({ ...header, kind: 'join', operand: data.rooms }, '') };
    case MessageType.SOCKETS_LEAVE:
      return { body: encodeEntry({ ...header, kind: 'leave', operand: data.rooms }, '') };
    case MessageType.DISCONNECT_SOCKETS:
      return { body: encodeEntry({ ...header, kind: 'disconnect', operand: data.close === true }, '') };
    default:
      return undefined;
  }
}

/** An entry of the log as fields of an entry of the old stream; `undefined` for what came from there. */
export function fromLog({ header, payload, attachments }: Entry): string[] | undefined {
  const { kind, namespace, rooms, except, operand, publisher } = header;
  if (publisher === CARRIED) return undefined;
  const keys = new RoomKeys(namespace);
  const roomsOf = (given: readonly string[]) =>
    given.map((key) => keys.roomOf(key)).filter((room) => room !== undefined);
  const opts = { rooms: roomsOf(rooms), except: roomsOf(except), flags: {} };
  switch (kind) {
    case 'event': {
      if (attachments.length === 0) {
        const start = `{"opts":${JSON.stringify(opts)},"packet":{"type":${PacketType.EVENT},"data":`;
        return fields(namespace, MessageType.BROADCAST, `${start}${payload},"nsp":${JSON.stringify(namespace)}}}`);
      }
      return broadcastFields(namespace, filled(payload, attachments), opts);
    }
    case 'join':
      return fields(namespace, MessageType.SOCKETS_JOIN, JSON.stringify({ opts, rooms: operand }));
    case 'leave':
      return fields(namespace, MessageType.SOCKETS_LEAVE, JSON.stringify({ opts, rooms: operand }));
    case 'disconnect':
      return fields(namespace, MessageType.DISCONNECT_SOCKETS, JSON.stringify({ opts, close: operand }));
    default:
      throw kind satisfies never;
  }
}

/** A broadcast that isn't in the log. */
export function volatileFields(namespace: string, args: readonly unknown[], opts: BroadcastOptions): string[] {
  const targets = { rooms: [...opts.rooms], except: [...(opts.except ?? [])], flags: { volatile: true } };
  const { payload, attachments } = encodeArguments(args);
  if (attachments.length > 0) return broadcastFields(namespace, args, targets);
  const packet = { type: PacketType.EVENT, data: JSON.parse(payload), nsp: namespace };
  return fields(namespace, MessageType.BROADCAST, JSON.stringify({ opts: targets, packet }));
}

/** Socket.IO's own decoder takes no more than ten attachments. */
function filled(payload: Buffer, attachments: readonly Buffer[]): unknown[] {
  return JSON.parse(payload.toString(), (_key, value: unknown) => {
    const { _placeholder, num } = (value ?? {}) as { _placeholder?: unknown; num?: number };
    return _placeholder === true ? attachments[num as number] : value;
  }) as unknown[];
}

function broadcastFields(namespace: string, args: readonly unknown[], opts: object): string[] {
  const packet = { type: PacketType.EVENT, data: args, nsp: namespace };
  return fields(namespace, MessageType.BROADCAST, encodeMessage({ opts, packet }).toString('base64'));
}

function fields(namespace: string, type: MessageType, data: string): string[] {
  return ['uid', WRITER, 'nsp', namespace, 'type', String(type), 'data', data, MARK, '1'];
}
