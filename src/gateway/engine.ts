import { EventEmitter } from 'node:events';
import type { FrameOptions } from './frames.js';

/** What the outbox uses of an engine.io connection, parts of which are internals of engine.io and ws. */
export interface EngineConnection {
  readonly readyState: string;
  readonly upgrading: boolean;
  readonly protocol: number;
  readonly transport: EngineTransport;
  readonly server: EventEmitter | undefined;
  writeBuffer: {
    data?: { length?: number; byteLength?: number };
    options?: { wsPreEncodedFrame?: readonly Buffer[] };
  }[];
  write(data: string | Buffer, options: object, callback?: () => void): void;
  close(discard?: boolean): void;
  listenerCount(event: string): number;
}

export interface EngineTransport {
  readonly name: string;
  readonly writable: boolean;
  readonly opts?: { readonly perMessageDeflate?: unknown };
  readonly socket?: WebSocketInternals;
}

export interface WebSocketInternals {
  readonly bufferedAmount: number;
  readonly _socket?: {
    readonly writableLength: number;
    readonly _handle?: { readonly writeQueueSize?: number };
    cork(): void;
    uncork(): void;
  };
  readonly _sender?: { sendFrame(frames: readonly Buffer[], callback?: () => void): void };
  terminate?(): void;
}

type TransportClass = new (
  request: object,
  options: object,
) => EngineTransport & EventEmitter & { send(packets: unknown[]): void };

const probed = new WeakMap<TransportClass, boolean>();

/** True if ready WebSocket frames that are given to this connection arrive at its socket as they are. */
export function takesFrames({ transport, protocol }: EngineConnection): boolean {
  if (transport.name !== 'websocket' || transport.opts?.perMessageDeflate || protocol === 3) return false;
  if (typeof transport.socket?._sender?.sendFrame !== 'function') return false;
  const ctor = transport.constructor as TransportClass;
  let does = probed.get(ctor);
  if (does === undefined) {
    does = probe(ctor);
    probed.set(ctor, does);
  }
  return does;
}

/** Whether engine.io hands its option `wsPreEncodedFrame` on to ws's sender is no promise of either: so it is tried, once. */
function probe(Transport: TransportClass): boolean {
  const given: unknown[] = [];
  const socket = Object.assign(new EventEmitter(), {
    readyState: 1,
    close() {},
    send: () => given.push('encoded again'),
    _sender: {
      sendFrame(frames: unknown, sent?: () => void) {
        given.push(frames);
        sent?.();
      },
    },
  });
  try {
    const transport = new Transport({ _query: { EIO: '4' }, websocket: socket }, {});
    const frames = [Buffer.from('x')];
    let drains = 0;
    transport.on('drain', () => drains++);
    transport.on('error', () => {});
    const options = { preEncoded: true, compress: false, wsPreEncodedFrame: frames };
    transport.send([{ type: 'message', data: 'x', options }]);
    return given.length === 1 && given[0] === frames && drains === 1 && transport.writable;
  } catch {
    return false;
  }
}

/**
 * Writes frames past engine.io, if nothing stands between them and the socket: nothing is queued, nobody listens for what
 * engine.io would tell. A callback on a write that is done at once costs a turn of the loop, so there is none: a write error
 * reaches ws as the socket's own. False: it must go by engine.io's way.
 */
export function writeDirectly(connection: EngineConnection, { wsPreEncodedFrame }: FrameOptions): boolean {
  const { transport, server } = connection;
  if (!transport.writable || connection.writeBuffer.length > 0) return false;
  if (connection.listenerCount('flush') + connection.listenerCount('drain') > 0) return false;
  if (server && server.listenerCount('flush') + server.listenerCount('drain') > 0) return false;
  transport.socket?._sender?.sendFrame(wsPreEncodedFrame);
  return true;
}
