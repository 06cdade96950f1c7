import { randomUUID } from 'node:crypto';
import { Encoder, PacketType } from 'socket.io-parser';
import { RelayError } from '../core/errors.js';
import type { EventLog } from '../log/index.js';
import { encodeEntry } from '../wire/envelope.js';
import { isName, isPublishableEvent, isRoom, scoped } from '../wire/names.js';
import { formatPosition } from '../wire/position.js';
import type { Ephemeral } from './ephemeral.js';

/** Stock parsers, ours and every receiver's, refuse more and close their connection. */
const MAX_ATTACHMENTS = 10;
/** What some receiver's parser can't follow would end its connection, again and again. */
const MAX_DEPTH = 1000;

/** What somebody asks to be published, not yet checked. */
export interface PublishRequest {
  readonly room?: unknown;
  readonly event?: unknown;
  readonly data?: unknown;
  readonly id?: unknown;
  readonly ephemeral?: unknown;
}

export interface PublisherIdentity {
  readonly tenant: string;
  /** `user:<sub>` or `key:<fingerprint>`: idempotency ids are scoped by tenant and this. */
  readonly name: string;
  readonly mayPublish: (room: string) => boolean;
}

/** `position` is absent for an ephemeral event. */
export interface Published {
  readonly position?: string;
  /** The id had been accepted before; nothing was appended again. */
  readonly duplicate?: true;
}

export interface PublisherOptions {
  readonly log: EventLog;
  readonly ephemeral: Ephemeral;
  readonly maxPayloadBytes: number;
}

/** Checks what is to be published and appends it, or sends it beside the log. Sockets and HTTP both come here. */
export class Publisher {
  readonly #encoder = new Encoder();

  constructor(private readonly options: PublisherOptions) {}

  /**
   * @throws {RelayError} `bad_request`, `permission_denied`, `payload_too_large`, `unavailable`, `overloaded`
   */
  async publish(request: PublishRequest, publisher: PublisherIdentity): Promise<Published> {
    const { log, ephemeral, maxPayloadBytes } = this.options;
    const { room, event, data, id, ephemeral: isEphemeral } = request;
    if (!isRoom(room))
      throw new RelayError('bad_request', 'room: wants 1 to 200 characters without control characters');
    if (!isName(event))
      throw new RelayError('bad_request', 'event: wants 1 to 200 characters without control characters');
    if (!isPublishableEvent(event)) throw new RelayError('bad_request', `event: ${JSON.stringify(event)} is reserved`);
    if (id !== undefined && !isName(id))
      throw new RelayError('bad_request', 'id: wants 1 to 200 characters without control characters');
    if (isEphemeral !== undefined && typeof isEphemeral !== 'boolean')
      throw new RelayError('bad_request', 'ephemeral: wants true or false');
    if (!publisher.mayPublish(room))
      throw new RelayError('permission_denied', `publishing to ${JSON.stringify(room)} is not allowed`);

    const meta = { room, id: id ?? randomUUID(), at: log.clock.at() };
    const { payload, attachments } = this.#encode([event, data ?? null, meta]);
    const bytes = attachments.reduce((sum, part) => sum + part.length, Buffer.byteLength(payload));
    if (bytes > maxPayloadBytes)
      throw new RelayError('payload_too_large', `the event has ${bytes} bytes, the limit is ${maxPayloadBytes}`);

    const scopedRoom = scoped(publisher.tenant, room);
    if (isEphemeral) {
      if (attachments.length > 0) throw new RelayError('bad_request', 'an ephemeral event has no binary data');
      await ephemeral.publish(scopedRoom, payload);
      return {};
    }
    const scope = scoped(publisher.tenant, publisher.name);
    const body = encodeEntry({ rooms: [scopedRoom], publisher: scope, id: meta.id }, payload);
    const result = await log.append(log.partitionOf(publisher.tenant), {
      body,
      attachments,
      idempotency: id === undefined ? undefined : { scope, id },
    });
    const { epoch, partition, ms, offset } = result.position;
    const position = formatPosition(epoch, partition, ms, offset);
    return result.isDuplicate ? { position, duplicate: true } : { position };
  }

  /** The JSON array as clients get it; binary data goes beside it, as Socket.IO has it. */
  #encode(args: readonly unknown[]): { payload: string; attachments: readonly Buffer[] } {
    if (!hasBinary(args)) return { payload: JSON.stringify(args), attachments: [] };
    const [text, ...parts] = this.#encoder.encode({ type: PacketType.EVENT, nsp: '/', data: args }) as [
      string,
      ...unknown[],
    ];
    if (parts.length > MAX_ATTACHMENTS)
      throw new RelayError('bad_request', `data: at most ${MAX_ATTACHMENTS} binary parts`);
    return {
      payload: text.slice(text.indexOf('-') + 1),
      attachments: parts.map((part) => Buffer.from(part as Uint8Array)),
    };
  }
}

/**
 * Level by level: what is nested a hundred thousand levels deep must not overflow the stack.
 *
 * @throws {RelayError} `bad_request` for what is nested too deeply
 */
function hasBinary(root: unknown): boolean {
  let isFound = false;
  let level: readonly unknown[] = [root];
  for (let depth = 0; level.length > 0; depth++) {
    if (depth > MAX_DEPTH) throw new RelayError('bad_request', `data: nested more than ${MAX_DEPTH} levels deep`);
    const next: unknown[] = [];
    for (const value of level) {
      if (typeof value !== 'object' || value === null) continue;
      if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) {
        isFound = true;
        continue;
      }
      for (const child of Array.isArray(value) ? value : Object.values(value))
        if (typeof child === 'object' && child !== null) next.push(child);
    }
    level = next;
  }
  return isFound;
}
