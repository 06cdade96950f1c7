import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Client } from 'pg';
import { Server, type Socket } from 'socket.io';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { AdmissionDatabase, TENANT } from '../../bench/admission-database.js';
import { AdmissionSide } from '../../bench/admission-side.js';
import { Worker } from '../../bench/worker.js';
import { eventually } from '../harness/poll.js';
import { TEST_JWT_SECRET } from '../harness/token.js';

// What the bench of admission must not overlook: a connect that was refused or undone would be a cheap one, and so would a
// statement that nobody counts.

const io = new Server(createServer(), { transports: ['websocket'], serveClient: false });
let clients: Worker;
let port: number;
let tokens: string[] = [];
let sockets: Socket[] = [];

beforeAll(async () => {
  await new Promise<void>((resolve) => io.httpServer.listen(0, '127.0.0.1', resolve));
  port = (io.httpServer.address() as AddressInfo).port;
  io.use((socket, next) => {
    tokens.push(socket.handshake.auth.token);
    next(tokens.length === 7 ? new Error('unauthorized') : undefined);
  });
  io.on('connection', (socket) => sockets.push(socket));
});

beforeEach(() => {
  tokens = [];
  sockets = [];
  const settings = { secret: TEST_JWT_SECRET, tenant: TENANT, hasDevices: true };
  clients = new Worker('clients', 'admission-clients.mjs', [JSON.stringify(settings)]);
  return () => clients[Symbol.asyncDispose]();
});

afterAll(() => io.close());

async function connect(from: number, count: number): Promise<void> {
  await clients.ask('prepare', { from, count });
  await clients.ask('connect', { port, concurrency: 4 });
}

const claimsOf = (token: string) => JSON.parse(Buffer.from(token.split('.')[1] as string, 'base64url').toString());

it('every client is somebody else, with a device of his own', async () => {
  await connect(0, 3);
  await connect(3, 3);
  const people = tokens.map(claimsOf).map(({ sub, device, tenant }) => `${tenant} ${sub} ${device}`);
  const wanted = Array.from({ length: 6 }, (_, n) => `${TENANT} user-${n} device-${n}`);
  expect(people.sort()).toEqual(wanted);
});

it('sees one that was refused among those that were not', async () => {
  await expect(connect(0, 10)).rejects.toThrow('unauthorized');
});

it('sees one that was sent away after it had come in', async () => {
  await connect(0, 3);
  sockets[1]?.disconnect(true);
  await eventually(async () => expect(await clients.ask('present')).toBe(2));
  await expect(clients.ask('leave')).rejects.toThrow('1 of 3 clients were closed by the server');
});

it('counts the statements of clients, not its own, and the CPU that they take', async () => {
  await using database = await AdmissionDatabase.start(10);
  const client = new Client(database.url);
  await client.connect();
  const [statements, cpu] = [await database.statements(), await database.cpu()];
  await client.query('select sum(n) from generate_series(1, 1000000) as n');
  expect(await database.statements()).toBe(statements + 1);
  expect(await database.cpu()).toBeGreaterThan(cpu + 20_000);
  await client.query('begin; select 1; commit');
  expect(await database.statements()).toBe(statements + 4);
  await client.end();
});

it('sees that somebody was let in because Postgres did not answer', async () => {
  await using side = await AdmissionSide.start('devices', 40);
  const inOutage = side.run({ count: 20, watched: 20 }, async (connect) => {
    await side.servers.database?.server.pause();
    return connect();
  });
  await expect(inOutage).rejects.toThrow('20 connects, but 0 were active');
});
