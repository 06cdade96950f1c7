import { once } from 'node:events';
import { request } from 'node:http';
import { connect } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { FatalError } from '../../src/core/errors.js';
import { silentLogger } from '../../src/core/ports.js';
import { createMeter, DependencyCheck, OpsListener, type OpsListenerOptions, Readiness } from '../../src/ops/index.js';

const listeners: OpsListener[] = [];

function make(options: Partial<OpsListenerOptions> & { ping?: () => Promise<void> } = {}) {
  const { ping = async () => {}, ...rest } = options;
  const meter = createMeter({ version: '1.2.3' });
  const readiness = new Readiness(meter);
  const listener = new OpsListener({
    host: '127.0.0.1',
    port: 0,
    identity: { version: '1.2.3', pod: 'pod-a', processId: 'p1' },
    readiness,
    meter,
    dependencies: new DependencyCheck({ checks: { redis: ping }, meter }),
    status: () => ({ connections: 5 }),
    logger: silentLogger,
    ...rest,
  });
  listeners.push(listener);
  return { listener, readiness, meter };
}

function ask(listener: OpsListener, path: string, init?: RequestInit): Promise<Response> {
  return fetch(`http://127.0.0.1:${listener.port}${path}`, init);
}

afterEach(async () => {
  await Promise.all(listeners.splice(0).map((listener) => listener.stop()));
});

test.each(['/_readiness', '/readyz', '/readyz?verbose=1'])(
  '%s says ready, and 503 for ever once draining',
  async (path) => {
    const { listener, readiness } = make();
    await listener.start();
    const before = await ask(listener, path);
    expect(before.status).toBe(200);
    expect(await before.json()).toEqual({ status: 'ready' });
    readiness.startDraining();
    for (let i = 0; i < 3; i++) {
      const after = await ask(listener, path);
      expect(after.status).toBe(503);
      expect(await after.json()).toEqual({ status: 'shutting_down' });
    }
  },
);

test('shutdown wins the race against any number of probes', async () => {
  const { listener, readiness, meter } = make();
  await listener.start();
  const racing = Array.from({ length: 200 }, async (_, i) => {
    const response = await ask(listener, '/_readiness');
    const { status } = (await response.json()) as { status: string };
    if (i === 50) readiness.startDraining();
    return status;
  });
  await racing[50];
  const later = await Promise.all(Array.from({ length: 50 }, async () => (await ask(listener, '/_readiness')).status));
  expect(new Set(later)).toEqual(new Set([503]));
  const told = await Promise.all(racing);
  const text = await meter.text();
  expect(text).toContain('holdfast_ready 0');
  const ready = told.filter((status) => status === 'ready').length;
  expect(text).toContain(`holdfast_readiness_checks_total{outcome="ready"} ${ready}\n`);
  expect(text).toContain(`holdfast_readiness_checks_total{outcome="shutting_down"} ${250 - ready}\n`);
});

test('readiness and liveness never ask a dependency; the status does, and stays readable while it hangs', async () => {
  let pings = 0;
  const { listener } = make({
    ping: () => {
      pings++;
      return new Promise(() => {});
    },
  });
  await listener.start();
  for (const path of ['/_readiness', '/readyz', '/_liveness', '/livez', '/metrics'])
    expect((await ask(listener, path)).status).toBe(200);
  expect(pings).toBe(0);
  const status = await ask(listener, '/_status');
  expect(status.status).toBe(200);
  expect(await status.json()).toMatchObject({
    version: '1.2.3',
    pod: 'pod-a',
    processId: 'p1',
    uptimeSeconds: expect.any(Number),
    draining: false,
    connections: 5,
    dependencies: { redis: { status: 'down', checkedAt: expect.any(String) } },
  });
  expect(pings).toBe(1);
});

test('metrics come with the content type of Prometheus, HEAD without a body', async () => {
  const { listener } = make();
  await listener.start();
  const got = await ask(listener, '/metrics');
  expect(got.headers.get('content-type')).toMatch(/^text\/plain; version=0\.0\.4/);
  expect(await got.text()).toContain('holdfast_build_info{version="1.2.3"} 1');
  const head = await ask(listener, '/livez', { method: 'HEAD' });
  expect(head.status).toBe(200);
  expect(await head.text()).toBe('');
});

test('other paths are 404 and other methods 405, with a code', async () => {
  const { listener } = make();
  await listener.start();
  const missing = await ask(listener, '/etc/passwd');
  expect(missing.status).toBe(404);
  expect(await missing.json()).toMatchObject({ code: 'not_found' });
  const posted = await ask(listener, '/readyz', { method: 'POST', body: 'x'.repeat(100_000) });
  expect(posted.status).toBe(405);
  expect(posted.headers.get('allow')).toBe('GET, HEAD');
  expect(await posted.json()).toMatchObject({ code: 'method_not_allowed' });
});

test('a status that throws is a 500, logged once per failure', async () => {
  const lines: string[] = [];
  const logger = { ...silentLogger, error: (_: object, message: string) => void lines.push(message) };
  const { listener } = make({
    logger,
    status: () => {
      throw new Error('bug');
    },
  });
  await listener.start();
  for (let i = 0; i < 3; i++) expect((await ask(listener, '/statusz')).status).toBe(500);
  expect(lines).toEqual(['private listener cannot answer']);
});

test('a taken port is one line that names it', async () => {
  const { listener: first } = make();
  await first.start();
  const { listener: second } = make({ port: first.port });
  const error: unknown = await second.start().catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(FatalError);
  expect((error as Error).message).toBe(
    `cannot bind the private listener to 127.0.0.1:${first.port} (OPS_PORT): the port is taken`,
  );
  await first.stop();
  await second.start();
  expect((await ask(second, '/livez')).status).toBe(200);
});

test('stop ends idle, half-sent and waiting connections within a second', async () => {
  const { listener } = make({ ping: () => new Promise(() => {}) });
  await listener.start();
  const { port } = listener;
  await (await ask(listener, '/livez')).text(); // leaves an idle keep-alive connection
  const halfSent = connect(port, '127.0.0.1');
  halfSent.on('error', () => {});
  halfSent.write('GET /livez HTTP/1.1\r\nhost: x\r\n');
  const waiting = request({ port, host: '127.0.0.1', path: '/_status' });
  waiting.on('error', () => {});
  waiting.end();
  await Promise.all([once(halfSent, 'connect'), once(waiting, 'socket')]);
  const startedAt = performance.now();
  await Promise.all([listener.stop(), once(halfSent, 'close')]);
  expect(performance.now() - startedAt).toBeLessThan(1000);
  await expect(fetch(`http://127.0.0.1:${port}/livez`)).rejects.toThrow();
});

test('start and stop are idempotent, and stop during start leaves no listener', async () => {
  for (let i = 0; i < 50; i++) {
    const { listener } = make({ host: i % 2 === 0 ? '127.0.0.1' : 'localhost' });
    const starting = Promise.all([listener.start(), listener.start()]);
    if (i % 3 === 0) await starting;
    await Promise.all([listener.stop(), listener.stop()]);
    await starting;
    expect(listener.port).toBe(0);
  }
});
