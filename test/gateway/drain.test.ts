import { once } from 'node:events';
import { connect as connectTcp, type Socket } from 'node:net';
import { expect, test } from 'vitest';
import { startPod, TEST_API_KEY } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { dataOf, join, publish, startStack } from './fixture.js';

async function talk(port: number, text: string): Promise<{ socket: Socket; answer: () => string }> {
  const socket = connectTcp(port, '127.0.0.1');
  let answer = '';
  socket.on('error', () => {});
  socket.on('data', (chunk) => {
    answer += chunk;
  });
  await once(socket, 'connect');
  socket.write(text);
  return { socket, answer: () => answer };
}

test('SIGTERM, twice: idle links hold nothing up, what is asked is answered, clients come back, the process ends well', async () => {
  await using stack = await startStack(1);
  await using pod = await startPod({ redisUrl: stack.redis.url, name: 'leaving', env: { HOLDFAST_DRAIN_MS: '3s' } });
  const clients = await Promise.all(Array.from({ length: 20 }, () => join(pod, { rooms: ['room'] })));
  const idle = await Promise.all(
    Array.from({ length: 5 }, () => talk(pod.port, 'GET /health HTTP/1.1\r\nHost: x\r\n\r\n')),
  );
  await eventually(() => idle.every(({ answer }) => answer().includes('200 OK')));
  const half = await talk(pod.port, 'POST /v1/publish HTTP/1.1\r\nHost: x\r\n');
  const body = '{"room":"room","event":"e","data":"slow"}';
  const slow = await talk(
    pod.port,
    `POST /v1/publish HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${TEST_API_KEY}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body.slice(0, 10)}`,
  );
  const startedAt = performance.now();
  const exit = pod.sigterm();
  setTimeout(() => slow.socket.write(body.slice(10)), 800);
  setTimeout(() => void pod.sigterm(), 1000);
  expect(await exit).toMatchObject({ code: 0 });
  expect(performance.now() - startedAt).toBeLessThan(12_000);
  expect(slow.answer()).toContain('200 OK');
  for (const client of clients) {
    expect(client.control.map(({ event }) => event)).toContain('holdfast:drain');
    // it was not told to stay away
    expect(client.socket.active).toBe(true);
    (client.socket.io as unknown as { uri: string }).uri = stack.pod(0).url;
  }
  await publish(stack.pod(0), 'room', ['missed']);
  for (const client of clients) {
    await eventually(() => dataOf(client).includes('missed'), { withinMs: 15_000 });
    expect(client.connects.at(-1)?.recovered).toBe(true);
    expect(dataOf(client)).toEqual(['slow', 'missed']);
    await client.stop();
  }
  for (const { socket } of [...idle, half, slow]) socket.destroy();
  expect(await stack.client.hget('hf:{pods}:names', 'leaving')).toBeNull();
});
