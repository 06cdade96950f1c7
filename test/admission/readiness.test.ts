import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, test } from 'vitest';
import { sleep } from '../../src/core/sleep.js';
import { startBareServer, watchReadiness } from './readiness.js';

/** In place of a pod: answers so, after so long. */
async function answering(status: number, afterMs: number) {
  const server = createServer((_request, response) => setTimeout(() => response.writeHead(status).end(), afterMs));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const stop = async (): Promise<void> => {
    server.closeAllConnections();
    server.close();
  };
  return {
    pid: process.pid,
    opsUrl: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    [Symbol.asyncDispose]: stop,
  };
}

test('whoever watches readiness sees who is late by itself, and who is not ready', async () => {
  await using bare = await startBareServer();
  await using late = await answering(200, 2000);
  await using unready = await answering(503, 0);
  await using watched = watchReadiness([late, unready], bare, 500);
  await sleep(500);
  const { asked, others, lateByThemselves } = await watched.stop();
  expect(asked).toBeGreaterThan(0);
  expect(others).toEqual(Array(asked / 2).fill(503));
  // the machine may be so slow that the bare server is late too, but not always
  expect(lateByThemselves.length).toBeGreaterThan(0);
  expect(Math.min(...lateByThemselves)).toBeGreaterThanOrEqual(500);
});
