import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Server, type Socket } from 'socket.io';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { Worker } from '../../bench/worker.js';
import { eventually } from '../harness/poll.js';

// What the bench's clients must not overlook: figures of a side that loses, doubles or reorders would be worth nothing.

const io = new Server(createServer(), { transports: ['websocket'], serveClient: false });
let clients: Worker;
let sockets: Socket[] = [];

beforeAll(async () => {
  await new Promise<void>((resolve) => io.httpServer.listen(0, '127.0.0.1', resolve));
  io.on('connection', (socket) => sockets.push(socket));
});

beforeEach(async () => {
  sockets = [];
  clients = new Worker('clients', 'clients.mjs');
  const { port } = io.httpServer.address() as AddressInfo;
  await clients.ask('connect', { port, count: 2, rooms: [['even'], ['even', 'odd']] });
  return () => clients[Symbol.asyncDispose]();
});

afterAll(() => io.close());

/** To the socket in `even` alone, and to the one in both rooms. */
function deliver(toEven: readonly number[], toBoth: readonly number[]): void {
  const [even, both] = [
    sockets.find(({ handshake }) => handshake.auth.rooms.length === 1),
    sockets.find(({ handshake }) => handshake.auth.rooms.length === 2),
  ];
  for (const n of toEven) even?.emit('tick', { n, at: 0 });
  for (const n of toBoth) both?.emit('tick', { n, at: 0 });
}

const expectFour = () => clients.ask('expect', { plan: { count: 4, rooms: ['even', 'odd'] } });
const arrived = () => clients.ask('arrived', { withinMs: 300 });

it('takes what is exact', async () => {
  expect(await expectFour()).toBe(6);
  deliver([0, 2], [0, 1, 2, 3]);
  await arrived();
  await expectFour();
});

it.each([
  ['one that is missing', [0, 1, 3]],
  ['one that came twice in place of another', [0, 1, 1, 3]],
  ['two in the wrong order', [0, 2, 1, 3]],
])('sees %s', async (_, received) => {
  await expectFour();
  deliver([0, 2], received);
  await expect(arrived()).rejects.toThrow(/subscriber 1 of 2/);
});

it('sees one that comes twice after all have arrived, when the next plan begins', async () => {
  await expectFour();
  deliver([0, 2], [0, 1, 2, 3]);
  await arrived();
  deliver([2], []);
  await eventually(() => expect(arrived()).rejects.toThrow('3 of 2 events'));
  await expect(expectFour()).rejects.toThrow('3 of 2 events');
});

it('sees an event in a room that was not joined', async () => {
  await expectFour();
  deliver([0, 1, 2], [0, 1, 2, 3]);
  await expect(arrived()).rejects.toThrow(/subscriber 0 of 2/);
});
