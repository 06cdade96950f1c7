import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createLog } from '../../src/backend-log/index.js';
import { runHere } from '../cli/run-here.js';
import { ask } from '../gateway/fixture.js';
import { connect } from '../harness/client.js';
import { type Pod, startPod, TEST_API_KEY } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { type PostgresProcess, startPostgres } from '../harness/postgres.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { block, code, codes, type Row, read, table } from './markdown.js';

/** More values than a table should hold, such as all error codes. */
const MANY = 12;

let redis: RedisProcess;
let postgres: PostgresProcess;
let admin: Redis;
let pod: Pod;
let url: string;

/** One pod, whose user may do what docs/operations.md says and nothing else. */
beforeAll(async () => {
  [redis, postgres] = await Promise.all([startRedis(), startPostgres()]);
  admin = new Redis(redis.url, { protocol: 2 });
  url = await urlUnder(block('docs/operations.md', '### Access control'));
  pod = await startPod({ redisUrl: url, name: 'documented', env: { DATABASE_URL: postgres.url } });
});
afterAll(async () => {
  admin?.disconnect();
  await pod?.stop();
  await Promise.all([redis?.stop(), postgres?.stop()]);
});

/** Makes the user of a rule. */
async function urlUnder(text: string): Promise<string> {
  const [command = '', ...rule] = text.split(/\s+/).filter(Boolean);
  await admin.call(command, ...rule);
  const password = rule.find((word) => word.startsWith('>'))?.slice(1);
  return redis.url.replace('//', `//${rule[1]}:${password}@`);
}

async function denied(): Promise<readonly unknown[][]> {
  const log = (await admin.acl('LOG')) as unknown[][];
  return log.filter((fields) => !fields.includes('client|setinfo'));
}

interface Metric {
  readonly type: string;
  /** Label → its values. */
  readonly labels: Map<string, Set<string>>;
}

async function exported(): Promise<Map<string, Metric>> {
  const text = await (await fetch(`${pod.opsUrl}/metrics`)).text();
  const metrics = new Map<string, Metric>();
  for (const [, name, type] of text.matchAll(/^# TYPE (holdfast_\w+) (\w+)$/gm))
    metrics.set(name as string, { type: type as string, labels: new Map() });
  for (const [, series, labels] of text.matchAll(/^(holdfast_\w+)\{(.*)\} /gm)) {
    const metric = metrics.get(series as string) ?? metrics.get((series as string).replace(/_(bucket|sum|count)$/, ''));
    for (const [, label, value] of (labels as string).matchAll(/(\w+)="([^"]*)"/g)) {
      if (label === 'le' || !metric) continue;
      const values = metric.labels.get(label as string) ?? new Set();
      metric.labels.set(label as string, values.add(value as string));
    }
  }
  return metrics;
}

/** `` `path`: live, ring; `kind`: … `` */
function labelsIn(row: Row): Map<string, string[]> {
  const parts = (row.labels ?? '').split(';').filter((part) => part.trim() !== '');
  return new Map(
    parts.map((part) => {
      const [label = '', values = ''] = part.split(/:(.*)/s);
      return [code(label), values.split(',').map((value) => value.trim())];
    }),
  );
}

test('docs/operations.md lists every metric of a pod, with type and labels', async () => {
  const rows = table('docs/operations.md', ['metric', 'type', 'labels', 'meaning']);
  const documented = rows.map((row) => [code(row.metric), row.type, [...labelsIn(row).keys()].sort()]);
  const real = [...(await exported())].map(([name, { type, labels }]) => [name, type, [...labels.keys()].sort()]);
  expect(documented.sort()).toEqual(real.sort());
});

test('docs/operations.md lists the values of every label that has few', async () => {
  const metrics = await exported();
  const wrong = table('docs/operations.md', ['metric', 'type', 'labels', 'meaning']).flatMap((row) =>
    [...labelsIn(row)].flatMap(([label, documented]) => {
      const real = [...(metrics.get(code(row.metric))?.labels.get(label) ?? [])];
      if (label === 'version' || real.length > MANY) return [];
      return documented.sort().join() === real.sort().join() ? [] : [`${row.metric} ${label}: ${real.join(', ')}`];
    }),
  );
  expect(wrong).toEqual([]);
});

test('every metric and label in an alert of docs/operations.md exists', async () => {
  const metrics = await exported();
  const alerts = table('docs/operations.md', ['when', 'because']).flatMap((row) => [
    ...(row.when ?? '').matchAll(/(holdfast_\w+)(?:\{(\w+)!?="([^"]*)"\})?/g),
  ]);
  const unknown = alerts.filter(([, name, label, value]) => {
    const metric = metrics.get(name as string);
    return !metric || (label !== undefined && !metric.labels.get(label)?.has(value as string));
  });
  expect(alerts.length).toBeGreaterThan(0);
  expect(unknown.map(([text]) => text)).toEqual([]);
});

test('docs/operations.md lists the paths of the private listener', async () => {
  const rows = table('docs/operations.md', ['path (either name)', 'answers', 'asks']);
  const paths = rows.flatMap((row) => codes(row['path (either name)'] ?? ''));
  const real = [...read('src/ops/listener.ts').matchAll(/\['(\/\w+)',/g)].map((match) => match[1]);
  expect(paths.sort()).toEqual(real.sort());
  for (const path of paths) expect((await fetch(`${pod.opsUrl}${path}`)).status).toBe(200);
});

test('docs/protocol.md lists the routes of the HTTP API', async () => {
  const rows = table('docs/protocol.md', ['route', 'what']);
  const { paths } = (await (await fetch(`${pod.url}/docs/json`)).json()) as { paths: Record<string, object> };
  const real = Object.entries(paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
  );
  expect(rows.map((row) => code(row.route)).sort()).toEqual(real.sort());
});

test('the ACL of docs/operations.md is enough for all that a relay does', async () => {
  const publish = (body: object): Promise<number> =>
    fetch(`${pod.url}/v1/publish`, {
      method: 'POST',
      headers: { authorization: `Bearer ${TEST_API_KEY}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    }).then(({ status }) => status);
  const other = await startPod({
    redisUrl: url,
    name: 'short-lived',
    env: { HOLDFAST_LOG_TRIM_MS: '100', HOLDFAST_RPC_STOCK_METHODS: 'default/media/*' },
  });
  try {
    await using client = await connect(pod.url, { token: await token({ sub: 'ada', caps: ALL_CAPS }) });
    const { position } = await client.subscribe('news');
    expect(await publish({ room: 'news', event: 'hello', id: 'one' })).toBe(200);
    expect(await publish({ room: 'news', event: 'hello', ephemeral: true })).toBe(200);
    await eventually(() => client.received.length === 2, { what: 'both events' });
    await client.socket.emitWithAck('unsubscribe', { room: 'news' });
    expect(await client.socket.emitWithAck('subscribe', { room: 'news', from: position })).toMatchObject({ ok: true });
    const history = await fetch(`${pod.url}/v1/history/news`, { headers: { authorization: `Bearer ${TEST_API_KEY}` } });
    expect(history.status).toBe(200);

    // calls: of a daemon on either pod, and of a stock worker that isn't there
    await using daemon = await connect(other.url, { token: await token({ sub: 'ada', caps: ALL_CAPS }) });
    daemon.socket.on('rpc-request', ({ method }, answer) => method === 'echo' && answer('echo'));
    for (const method of ['echo', 'hang', 'gone'])
      expect(await daemon.socket.emitWithAck('rpc-register', { method })).toEqual({ ok: true });
    expect(await daemon.socket.emitWithAck('rpc-unregister', { method: 'gone' })).toEqual({ ok: true });
    const call = { method: 'hang', id: 'given-up' };
    expect(await client.socket.emitWithAck('rpc-call', { method: 'echo' })).toEqual({ ok: true, result: 'echo' });
    const hanging = client.socket.emitWithAck('rpc-call', call);
    const attached = daemon.socket.emitWithAck('rpc-attach', call);
    await eventually(async () => (await client.socket.emitWithAck('rpc-cancel', call)).ok === true);
    expect(await hanging).toMatchObject({ code: 'cancelled' });
    expect(await attached).toMatchObject({ ok: false });
    expect(await client.socket.emitWithAck('presence-get', {})).toMatchObject({ methods: ['echo', 'hang'] });
    const absent = await fetch(`${other.url}/v1/rpc/media/resize`, {
      method: 'POST',
      headers: { authorization: `Bearer ${TEST_API_KEY}` },
    });
    expect(await absent.json()).toMatchObject({ code: 'no_worker' });

    for (const args of [
      ['publish', 'news', 'hello'],
      ['tail', '--from', 'earliest', '--no-follow'],
      ['topics', 'describe'],
      ['groups', 'describe'],
      ['rpc', 'call', 'ada', 'echo'],
      ['rpc', 'methods', 'ada'],
    ])
      expect(await runHere(args, { REDIS_URL: url })).toMatchObject({ code: 0, err: '' });

    // a dead pod is buried by the other one; a new one finds its scripts gone
    await other.sigkill();
    const buried = async (): Promise<boolean> => (await pod.metrics()).get('holdfast_processes_reaped_total') === 1;
    await eventually(buried, { withinMs: 15_000, what: 'the dead pod to be buried' });
    await admin.script('FLUSH');
    expect(await publish({ room: 'news', event: 'hello' })).toBe(200);
    await admin.flushall();
    await eventually(async () => (await publish({ room: 'news', event: 'hello' })) === 200, {
      what: 'a publish after a wipe',
    });
  } finally {
    await other.stop();
  }
  expect(await denied()).toEqual([]);
});

test('the ACLs of docs/operations.md are enough for back ends with groups, and for who looks after those', async () => {
  const { 1: narrow = '' } = /`~hf:\*` may be narrowed to `([^`]+)`/.exec(read('docs/operations.md')) ?? [];
  const rule = block('docs/operations.md', '#### Of back ends with groups');
  const ownUrl = await urlUnder(rule.replace('~hf:*', narrow.replaceAll('<topic>', 'orders')));
  await using log = createLog(ownUrl, { topic: 'orders', partitions: 2 });
  const failing = log.group('billing', { from: 'earliest' });
  let isHealed = false;
  const done: string[] = [];
  const handler = (entry: { readonly id: string }): void => {
    if (!isHealed) throw new Error('not yet');
    done.push(entry.id);
  };
  const options = { leaseMs: 500, backoffMs: 10, maxDeliveries: 2 };
  await using reader = failing.run(handler, options);
  await using ordered = log.group('audit', { from: 'earliest' }).run(() => {}, { ...options, orderedBy: 'tenant' });
  await Promise.all([reader.ready, ordered.ready]);
  for (const id of ['one', 'two', 'three']) await log.append({ event: 'order', id, key: id });

  const of = (path: string): string => `/v1/groups/billing${path}?topic=orders`;
  const answered = async (method: string, path: string, body?: object) => {
    const answer = await ask(pod, method, path, { body });
    expect(answer, `${method} ${path}`).toMatchObject({ status: 200 });
    return answer.body;
  };
  await eventually(async () => (await answered('GET', of('/dead-letters'))).count === 3, { what: 'the dead letters' });
  const [{ id }, other] = (await answered('GET', of('/dead-letters'))).deadLetters;
  await answered('GET', of(`/dead-letters/${id}`));
  isHealed = true;
  await answered('POST', of('/dead-letters/redrive'), { topic: 'orders', ids: [id] });
  await eventually(() => done.length === 1, { what: 'what was redriven' });
  await answered('POST', of('/dead-letters/drop'), { topic: 'orders', ids: [other.id] });
  for (const path of ['/v1/groups', of(''), of('/members'), '/v1/topics', '/v1/topics/orders'])
    await answered('GET', path);
  await Promise.all([reader.stop(), ordered.stop()]);

  for (const group of ['billing', 'new'])
    for (const place of [{ toEarliest: true }, { toPosition: 1 }, { byDuration: '1h' }])
      await answered('POST', `/v1/groups/${group}/reset-offsets`, { topic: 'orders', ...place, execute: true });
  await using again = failing.run(handler, options);
  await eventually(() => done.length > 1, { what: 'what was reset' });
  await answered('POST', '/v1/groups/gc', { silentFor: '1ms', execute: true });
  await again.stop();
  await answered('POST', '/v1/topics/orders/trim', { to: 'latest', execute: true });
  await answered('DELETE', of(''));
  for (const args of [
    ['groups', 'describe', '-t', 'orders'],
    ['groups', 'reset-offsets', 'billing', '--to-earliest', '--execute', '-t', 'orders'],
    ['groups', 'describe', 'billing', '--members', '-t', 'orders'],
    ['dlq', 'list', 'billing', '-t', 'orders'],
    ['groups', 'delete', 'billing', '--yes', '-t', 'orders'],
  ])
    expect(await runHere(args, { REDIS_URL: url }), args.join(' ')).toMatchObject({ code: 0 });
  expect(await denied()).toEqual([]);
});
