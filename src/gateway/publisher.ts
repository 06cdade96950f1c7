import { randomUUID } from 'node:crypto';
import { RelayError } from '../core/errors.js';
import type { EventLog } from '../log/index.js';
import { checkEvent, composeEvent, type EventRequest } from '../wire/event.js';
import { formatPosition } from '../wire/position.js';
import { encodeBinary } from './encode-binary.js';
import type { Ephemeral } from './ephemeral.js';

export interface PublishRequest extends EventRequest {
  readonly ephemeral?: unknown;
}

export interface PublisherIdentity {
  readonly tenant: string;
  /** `user:<sub>` or `key:<fingerprint>`: idempotency ids are scoped by tenant and this. */
  readonly name: string;
  readonly mayPublish: (room: string) => boolean;
  /** Its verdict is confirmed and young: nothing to wait for. Else a promise, which rejects with what refuses the write. */
  readonly fence: () => Promise<void> | undefined;
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
  constructor(private readonly options: PublisherOptions) {}

  /**
   * @throws {RelayError} `bad_request`, `permission_denied`, `tenant_inactive`, `unauthorized`, `payload_too_large`, `unavailable`,
   * `overloaded`
   */
  async publish(request: PublishRequest, { tenant, name, mayPublish, fence }: PublisherIdentity): Promise<Published> {
    const { log, ephemeral, maxPayloadBytes } = this.options;
    const { ephemeral: isEphemeral } = request;
    const checked = checkEvent(request);
    if (isEphemeral !== undefined && typeof isEphemeral !== 'boolean')
      throw new RelayError('bad_request', 'ephemeral: wants true or false');
    if (!mayPublish(checked.room))
      throw new RelayError('permission_denied', `publishing to ${JSON.stringify(checked.room)} is not allowed`);
    const fenced = fence();
    if (fenced) await fenced;

    const origin = { tenant, publisher: name, newId: randomUUID(), at: log.clock.at() };
    const encode = checked.isBinary ? encodeBinary : undefined;
    const { room, payload, attachments, body, idempotency } = composeEvent(checked, origin, maxPayloadBytes, encode);
    if (isEphemeral) {
      if (attachments.length > 0) throw new RelayError('bad_request', 'an ephemeral event has no binary data');
      await ephemeral.publish(room, payload);
      return {};
    }
    const result = await log.append(log.partitionOf(tenant), { body, attachments, idempotency });
    const { epoch, partition, ms, offset } = result.position;
    const position = formatPosition(epoch, partition, ms, offset);
    return result.isDuplicate ? { position, duplicate: true } : { position };
  }
}
