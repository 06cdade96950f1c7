import { createRequire } from 'node:module';
import { Encoder } from 'socket.io-parser';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ownEncoderOf } from '../../src/adapter/encoders.js';
import { adapterInternals, namespaceInternals, socketInternals } from '../../src/adapter/socket-io-internals.js';
import { type EngineConnection, takesFrames, writeDirectly } from '../../src/gateway/engine.js';
import { eventually } from '../harness/poll.js';
import { type Cluster, pair, startCluster, type TestClient, type TestServer } from './rig.js';

/** engine.io and ws as the server itself has them. */
const fromServer = createRequire(createRequire(import.meta.url).resolve('socket.io'));
const transports = fromServer('engine.io').transports as Record<string, TransportClass>;

interface Sent {
  readonly options: object;
}
type TransportClass = new (request: object, options: object) => { send(packets: Sent[]): void };

const RECOVERY = { connectionStateRecovery: { maxDisconnectionDuration: 60_000, skipMiddlewares: true } };

let cluster: Cluster;
let a: TestServer;
let b: TestServer;

beforeAll(async () => {
  cluster = await startCluster(2, RECOVERY);
  [a, b] = pair(cluster);
});
afterAll(() => cluster?.stop());

const connectionOf = (server: TestServer, client: TestClient): EngineConnection =>
  server.socketOf(client).conn as unknown as EngineConnection;

describe('the parts of Socket.IO, engine.io and ws that have no documentation are as the adapter takes them', () => {
  test('of a connection', async () => {
    const connection = connectionOf(a, await a.client());
    expect(connection).toMatchObject({ readyState: 'open', upgrading: false, protocol: 4, writeBuffer: [] });
    for (const method of ['write', 'close', 'listenerCount', 'on', 'once'] as const)
      expect((connection as unknown as Record<string, unknown>)[method], method).toBeTypeOf('function');
    expect(connection.server?.listenerCount('flush')).toBe(0);
    const { transport } = connection;
    expect(transport).toMatchObject({ name: 'websocket', writable: true });
    expect(transport.opts).toHaveProperty('perMessageDeflate');
    expect(transport.socket?.bufferedAmount).toBe(0);
    expect(transport.socket?.terminate).toBeTypeOf('function');
    expect(transport.socket?._sender?.sendFrame).toBeTypeOf('function');
    expect(transport.socket?._socket?.writableLength).toBe(0);
    expect(transport.socket?._socket?._handle?.writeQueueSize).toBe(0);
    for (const method of ['cork', 'uncork'] as const)
      expect(transport.socket?._socket?.[method], method).toBeTypeOf('function');
  });

  test('of a namespace and its adapter: the handshake asks it, with pid and offset, and writes what it says', async () => {
    const nsp = a.io.of('/');
    expect(namespaceInternals(nsp)._createSocket).toBeTypeOf('function');
    expect(namespaceInternals(nsp)._onServerSideEmit).toBeTypeOf('function');
    expect(adapterInternals(nsp.adapter).apply).toBeTypeOf('function');
    expect((a.io as unknown as { opts: object }).opts).toMatchObject(RECOVERY);
    const asked: unknown[] = [];
    const { adapter } = nsp;
    const { restoreSession } = adapter;
    adapter.restoreSession = (pid, offset) => {
      asked.push([pid, offset]);
      return restoreSession.call(adapter, pid, offset);
    };
    const client = await a.client();
    a.socketOf(client).join('internals');
    const { pid } = socketInternals(a.socketOf(client));
    a.io.to('internals').emit('e', 1);
    await client.receives([1]);
    const offset = client.got[0]?.args[1];
    client.cut();
    await client.connected(2);
    expect(asked).toEqual([[pid, client.told[0]?.args[0] && offset]]);
  });

  test('of a socket: every packet passes `packet`, listeners are told by `notifyOutgoingListeners`', async () => {
    const client = await a.client();
    const socket = a.socketOf(client);
    const internals = socketInternals(socket);
    expect(internals.pid).toMatch(/^[\w-]{10,}$/);
    expect(internals.notifyOutgoingListeners).toBeTypeOf('function');
    socket.onAnyOutgoing(() => {});
    expect((socket as unknown as { _anyOutgoingListeners: unknown[] })._anyOutgoingListeners).toHaveLength(1);
    const packets: number[] = [];
    const { packet } = internals;
    internals.packet = (sent, opts) => {
      packets.push(sent.type);
      packet.call(socket, sent, opts);
    };
    client.socket.on('ask', (done) => done());
    await socket.timeout(2000).emitWithAck('ask');
    socket.on('back', (done) => done());
    await client.socket.emitWithAck('back');
    socket.disconnect();
    // an answer, and a disconnect
    expect(packets).toEqual([3, 1]);
  });

  test('frames that are given to engine.io as ready reach the wire as they are', async () => {
    const client = await a.client();
    const connection = connectionOf(a, client);
    expect(takesFrames(connection)).toBe(true);
    const text = Buffer.from('42["raw",1]');
    const frame = Buffer.concat([Buffer.from([0x81, text.length]), text]);
    const options = { preEncoded: true, compress: false, wsPreEncodedFrame: [frame] } as const;
    connection.write('b', options);
    await client.receives([1], 'raw');
    await eventually(() => connection.transport.writable);
    expect(writeDirectly(connection, options)).toBe(true);
    await client.receives([1, 1], 'raw');
  });

  test('the encoder: the default one is known, another one is used', () => {
    expect(ownEncoderOf(new Encoder())).toBeUndefined();
    const replaced = new Encoder((_key: string, value: unknown) => value);
    expect(ownEncoderOf(replaced)).toBe(replaced);
    const broken = {
      encode: () => {
        throw new Error('planted');
      },
    };
    expect(ownEncoderOf(broken)).toBe(broken);
  });
});

describe('where frames would not arrive they are not used', () => {
  const numbers = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

  test('with HTTP long-polling', async () => {
    expect(takesFrames(connectionOf(a, await a.client({ transports: ['polling'] })))).toBe(false);
  });

  test.each([
    ['a transport that drops the option', (packets: Sent[]) => packets.map(stripped)],
    ['a transport that copies the frames', (packets: Sent[]) => packets.map(copied)],
  ])('with %s: packet by packet, everything arrives in order', async (_name, change) => {
    const stock = transports.websocket as TransportClass;
    transports.websocket = class extends stock {
      override send(packets: Sent[]): void {
        super.send(change(packets));
      }
    };
    try {
      const client = await b.member('room');
      expect(takesFrames(connectionOf(b, client))).toBe(false);
      for (const n of numbers(100)) {
        a.io.to('room').emit('e', n, Buffer.from([n]));
        if (n % 5 === 0) b.socketOf(client).emit('own', n);
      }
      await client.receives(numbers(100));
      expect(client.got.find(({ args }) => args[0] === 99)?.args[1]).toEqual(Buffer.from([99]));
      await eventually(() => client.values('own').length === 20);
    } finally {
      transports.websocket = stock;
    }
  });

  test.each(['packetCreate', 'flush', 'drain'])('a listener for %s hears of every packet', async (event) => {
    const client = await b.member(`listen-${event}`);
    const { conn } = b.socketOf(client);
    let heard = 0;
    conn.on(event as 'drain', () => heard++);
    for (const n of numbers(10)) {
      a.io.to(`listen-${event}`).emit('e', n);
      await client.receives(numbers(n + 1));
    }
    expect(heard).toBeGreaterThanOrEqual(10);
  });

  function stripped({ options, ...packet }: Sent): Sent {
    const { wsPreEncodedFrame: _, ...rest } = options as { wsPreEncodedFrame?: unknown };
    return { ...packet, options: rest };
  }

  function copied({ options, ...packet }: Sent): Sent {
    const { wsPreEncodedFrame: frames } = options as { wsPreEncodedFrame?: Buffer[] };
    return { ...packet, options: frames ? { ...options, wsPreEncodedFrame: [...frames] } : options };
  }
});
