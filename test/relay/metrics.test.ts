import { randomBytes } from 'node:crypto';
import { connect as connectTcp } from 'node:net';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { connect, open } from '../harness/client.js';
import { type Pod, startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { promtoolCheck, startPrometheus } from '../harness/prometheus.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { ALL_CAPS, token } from '../harness/token.js';

let redis: RedisProcess;
let a: Pod;
let b: Pod;
beforeAll(async () => {
  redis = await startRedis();
  [a, b] = (await Promise.all(
    ['pod-a', 'pod-b'].map((name) => startPod({ redisUrl: redis.url, name, env: { HOLDFAST_DRAIN_MS: '5s' } })),
  )) as [Pod, Pod];
});
afterAll(async () => {
  await Promise.all([a?.stop(), b?.stop()]);
  await redis?.stop();
});

const MARK = 'x7q9';
/** Never seen before, and known again if it turned up in a label. */
const junk = (): string => `${MARK}${randomBytes(6).toString('hex')}`;

async function scrape(pod: Pod): Promise<string> {
  return (await fetch(`${pod.opsUrl}/metrics`)).text();
}

function seriesOf(text: string): string[] {
  return text
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'))
    .map((line) => line.slice(0, line.lastIndexOf(' ')))
    .sort();
}

it('promtool has nothing against a scrape', async () => {
  expect(await promtoolCheck(await scrape(a))).toEqual({ ok: true, errors: [] });
});

it('the series are the same whatever clients send, and the gauges are 0 when all have gone', async () => {
  const before = await scrape(a);
  const attempts = { good: 20, refused: 60, polling: 20, reset: 20 };
  await Promise.all(
    Array.from({ length: attempts.polling }, () => fetch(`${a.url}/socket.io/?EIO=4&transport=polling&t=${junk()}`)),
  );
  await Promise.all(
    Array.from({ length: 50 }, async () => {
      await fetch(`${a.url}/${junk()}`);
      await fetch(`${a.url}/v1/history/${junk()}`, { headers: { authorization: `Bearer ${junk()}` } });
      await fetch(`${a.opsUrl}/${junk()}`);
      await fetch(`${a.url}/v1/publish`, { method: 'POST', body: junk() });
    }),
  );
  await Promise.all(
    Array.from({ length: attempts.refused }, async () => {
      const client = open(a.url, { token: junk(), auth: { device: junk() } });
      await expect(client.connected()).rejects.toThrow('Invalid authentication token');
      await client.stop();
    }),
  );
  await Promise.all(Array.from({ length: attempts.reset }, () => resetInHandshake(a.port)));
  const clients = await Promise.all(
    Array.from({ length: attempts.good }, async () =>
      connect(a.url, { token: await token({ sub: junk(), tenant: junk(), device: junk(), caps: ALL_CAPS }) }),
    ),
  );
  await Promise.all(
    clients.map(async (client) => {
      await client.subscribe(junk());
      await client.publish({ room: junk(), event: junk(), id: junk() });
      await client.publish({ room: '', event: `rpc-${junk()}` });
      client.socket.emit(junk(), junk());
      await client.subscribe(junk(), junk());
    }),
  );
  expect((await a.metrics()).get('holdfast_connections')).toBe(attempts.good);
  await Promise.all(clients.map((client) => client.stop()));
  await eventually(async () => expect((await a.metrics()).get('holdfast_connections')).toBe(0), { withinMs: 15_000 });

  const text = await scrape(a);
  expect(seriesOf(text)).toEqual(seriesOf(before));
  expect(text).not.toContain(MARK);
  const now = await a.metrics();
  const sum = (name: string): number =>
    [...now].reduce((total, [series, value]) => (series.startsWith(`${name}{`) ? total + value : total), 0);
  expect(now.get('holdfast_connections_accepted_total')).toBe(attempts.good);
  expect(sum('holdfast_disconnects_total')).toBe(attempts.good);
  expect(now.get('holdfast_connections_refused_total{reason="unauthorized"}')).toBe(attempts.refused);
  expect(now.get('holdfast_connections_refused_total{reason="polling"}')).toBe(attempts.polling);
  for (const [series, value] of now)
    if (/^holdfast_(connections|slow_consumers_behind)$/.test(series)) expect(value).toBe(0);
});

it('Prometheus scrapes every pod, and sees one drain', async () => {
  await using prometheus = await startPrometheus({ targets: [a, b].map(({ opsPort }) => `127.0.0.1:${opsPort}`) });
  const valuesOf = async (expression: string): Promise<number[]> =>
    (await prometheus.query(expression)).map(({ value }) => value);
  await eventually(
    async () => {
      expect(await valuesOf('up')).toEqual([1, 1]);
      expect(await valuesOf('holdfast_ready')).toEqual([1, 1]);
      expect(await valuesOf('count(holdfast_build_info)')).toEqual([2]);
    },
    { withinMs: 20_000 },
  );
  await using client = await connect(b.url, { token: await token({ sub: 'ann', caps: ALL_CAPS }) });
  await client.subscribe('news');
  const counted = 'sum(holdfast_log_entries_delivered_total)';
  const [earlier = 0] = await valuesOf(counted);
  for (let n = 0; n < 5; n++) expect(await client.publish({ room: 'news', event: 'tick' })).toMatchObject({ ok: true });
  await eventually(async () => expect(await valuesOf(counted)).toEqual([earlier + 5]), { withinMs: 20_000 });
  const exit = b.sigterm();
  await eventually(async () => expect((await valuesOf('holdfast_ready')).sort()).toEqual([0, 1]), { withinMs: 10_000 });
  expect((await exit).code).toBe(0);
  await eventually(async () => expect((await valuesOf('up')).sort()).toEqual([0, 1]), { withinMs: 20_000 });
});

/** A WebSocket upgrade whose connection is reset before anything comes back. */
function resetInHandshake(port: number): Promise<void> {
  return new Promise((resolve) => {
    const socket = connectTcp(port, '127.0.0.1', () => {
      socket.write(
        'GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n' +
          'sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n',
        () => socket.resetAndDestroy(),
      );
    });
    socket.on('error', () => {});
    socket.on('close', () => resolve());
  });
}
