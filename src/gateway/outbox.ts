import type { Socket } from 'socket.io';
import { PacketType } from 'socket.io-parser';
import { type EngineConnection, type EngineTransport, takesFrames, writeDirectly } from './engine.js';
import { decodePacket, type Parcel } from './frames.js';

/** Unlogged bytes that a client may leave unread: answers, ephemeral events. */
export const MAX_UNSENT_BYTES = 1024 * 1024;
/** More than this unsent, and a socket falls behind: it holds a place in the log, and no buffers. */
export const BEHIND_BYTES = 256 * 1024;

/** Placeholder of a packet whose WebSocket frames are ready; engine.io wants some text. */
const PRE_ENCODED = 'b';

type Listener = (...args: unknown[]) => void;

/** An encoder of Socket.IO packets, such as its option `parser` brings. */
export interface PacketEncoder {
  encode(packet: { type: number; nsp: string; data: unknown[] }): (string | Buffer)[];
}

export interface OutboxOptions {
  /** The server's own, if it isn't Socket.IO's default one: packets are encoded anew by it. */
  readonly encoder?: PacketEncoder;
  /** Told of what a listener for outgoing packets throws: the client gets them all the same. */
  readonly onListenerError?: (error: unknown) => void;
}

/**
 * The one way of packets to a connection: what leaves here is in order with everything else that Socket.IO sends.
 * Knows engine.io's and ws's internals, so that nobody else has to.
 */
export class Outbox {
  readonly #connection: EngineConnection;
  /** engine.io's buffer whose first `#counted` packets are in `#bytes`; it makes a new one at every flush. */
  #buffer: EngineConnection['writeBuffer'] | undefined;
  #counted = 0;
  #bytes = 0;
  /** The transport that `#takesFrames` was found for. */
  #transport: EngineTransport | undefined;
  #takesFrames = false;

  constructor(
    private readonly socket: Socket,
    private readonly options: OutboxOptions = {},
  ) {
    this.#connection = socket.conn as unknown as EngineConnection;
  }

  get isOpen(): boolean {
    return this.#connection.readyState === 'open';
  }

  /** Writes packets that were encoded once for all. `onSent` comes when they have left this process's buffers. */
  write(parcel: Parcel, onSent?: () => void): void {
    const connection = this.#connection;
    if (!this.isOpen) return;
    this.#tellListeners(parcel);
    const { transport } = connection;
    if (transport !== this.#transport) {
      this.#transport = transport;
      this.#takesFrames = takesFrames(connection);
    }
    if (
      this.options.encoder ||
      !this.#takesFrames ||
      connection.upgrading ||
      connection.listenerCount('packetCreate') > 0
    )
      return this.#writeParts(parcel, onSent);
    if (!onSent && writeDirectly(connection, parcel.options)) return;
    connection.write(PRE_ENCODED, parcel.options, onSent);
  }

  /** What `write` writes, and what Socket.IO writes in this turn of the loop, leaves together. */
  inOneSegment(write: () => void): void {
    const raw = this.#connection.transport.socket?._socket;
    raw?.cork();
    process.nextTick(() => raw?.uncork());
    write();
  }

  #writeParts(parcel: Parcel, onSent?: () => void): void {
    const { encoder } = this.options;
    const packets = parcel.packets();
    const parts = (encoder ? packets.map((packet) => encoder.encode(decodePacket(packet))) : packets).flat();
    parts.forEach((part, index) => {
      this.#connection.write(part, {}, index === parts.length - 1 ? onSent : undefined);
    });
  }

  #tellListeners(parcel: Parcel): void {
    const { _anyOutgoingListeners: listeners } = this.socket as unknown as { _anyOutgoingListeners?: Listener[] };
    if (!listeners || listeners.length === 0) return;
    for (const packet of parcel.packets()) {
      const { data } = decodePacket(packet);
      for (const listener of [...listeners]) {
        try {
          listener.apply(this.socket, data);
        } catch (error) {
          this.options.onListenerError?.(error);
        }
      }
    }
  }

  /** Emits one of our own events, to this connection only: `socket.emit` of a server that recovers connections is a broadcast. */
  emit(event: string, ...args: unknown[]): void {
    const { packet } = this.socket as unknown as { packet(packet: { type: number; data: unknown[] }): void };
    packet.call(this.socket, { type: PacketType.EVENT, data: [event, ...args] });
  }

  /** Bytes that were written and have not reached the kernel. */
  get unsentBytes(): number {
    const { writeBuffer, transport } = this.#connection;
    if (writeBuffer !== this.#buffer) {
      this.#buffer = writeBuffer;
      this.#counted = 0;
      this.#bytes = 0;
    }
    for (; this.#counted < writeBuffer.length; this.#counted++) {
      const packet = writeBuffer[this.#counted];
      const frames = packet?.options?.wsPreEncodedFrame;
      if (frames) for (const frame of frames) this.#bytes += frame.length;
      else this.#bytes += packet?.data?.length ?? packet?.data?.byteLength ?? 0;
    }
    return this.#bytes + (transport.socket?.bufferedAmount ?? 0);
  }

  /** Changes whenever bytes went out, be it in the middle of one large write. */
  get progress(): number {
    const raw = this.#connection.transport.socket?._socket;
    return this.unsentBytes + (raw?._handle?.writeQueueSize ?? 0);
  }

  /** Closes the transport, so that a stock client comes back by itself. What waits is still sent, for a moment. */
  closeTransport(): void {
    this.#connection.close();
    const { socket } = this.#connection.transport;
    setTimeout(() => (socket?.terminate ? socket.terminate() : this.#connection.close(true)), 1000).unref();
  }

  /** Closes the transport and drops what waits. */
  cut(): void {
    this.#connection.writeBuffer = [];
    this.#connection.close(true);
    this.#connection.transport.socket?.terminate?.();
  }
}
