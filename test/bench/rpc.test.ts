import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Server, type Socket } from 'socket.io';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { Worker } from '../../bench/worker.js';

// What the bench's callers must not overlook: a call that is answered wrongly, or that ran twice, would be a fast one.

interface Request {
  readonly method: string;
  readonly params: { readonly n: number; readonly text: string };
}

type Ack = (answer: object) => void;

const io = new Server(createServer(), { transports: ['websocket'], serveClient: false });
let clients: Worker;
let port: number;
let onCall: (request: Request, ack: Ack) => void;
let daemon: Socket | undefined;

beforeAll(async () => {
  await new Promise<void>((resolve) => io.httpServer.listen(0, '127.0.0.1', resolve));
  port = (io.httpServer.address() as AddressInfo).port;
  io.on('connection', (socket) => {
    socket.on('rpc-call', (request: Request, ack: Ack) => onCall(request, ack));
    socket.on('rpc-register', (_, ack: Ack) => {
      daemon = socket;
      ack({ ok: true });
    });
  });
});

beforeEach(() => {
  clients = new Worker('clients', 'rpc-clients.mjs');
  return () => clients[Symbol.asyncDispose]();
});

afterAll(() => io.close());

async function call(count: number): Promise<unknown> {
  await clients.ask('open', { port, count: 2 });
  return clients.ask('call', { count, callers: 2 });
}

it('parameters are 200 bytes of JSON, and calls that get them back count', async () => {
  const sizes = new Set<number>();
  onCall = ({ params }, ack) => {
    sizes.add(JSON.stringify(params).length);
    ack({ ok: true, result: params });
  };
  expect(await call(10)).toMatchObject({
    wallUs: expect.any(Number),
    p50: expect.any(Number),
    p99: expect.any(Number),
  });
  expect([...sizes]).toEqual([200]);
});

it('sees a result of another call', async () => {
  const waiting: { readonly request: Request; readonly ack: Ack }[] = [];
  onCall = (request, ack) => {
    waiting.push({ request, ack });
    if (waiting.length < 2) return;
    const [first, second] = waiting.splice(0) as [(typeof waiting)[0], (typeof waiting)[0]];
    first.ack({ ok: true, result: second.request.params });
    second.ack({ ok: true, result: first.request.params });
  };
  await expect(call(2)).rejects.toThrow(/was answered with/);
});

it('sees one whose payload was cut', async () => {
  onCall = ({ params }, ack) => ack({ ok: true, result: { n: params.n } });
  await expect(call(2)).rejects.toThrow(/was answered with/);
});

it('sees one that failed among those that did not', async () => {
  let calls = 0;
  onCall = ({ params }, ack) => ack(++calls === 7 ? { ok: false, code: 'worker_lost' } : { ok: true, result: params });
  await expect(call(10)).rejects.toThrow('worker_lost');
});

it('counts a request that comes twice as two executions', async () => {
  await clients.ask('serve', { port });
  const request = { method: 'work', params: { n: 1, text: '' } };
  for (let i = 0; i < 2; i++)
    expect(await daemon?.timeout(1000).emitWithAck('rpc-request', request)).toEqual(request.params);
  expect(await clients.ask('executions')).toBe(2);
});
