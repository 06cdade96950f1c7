import { connect, createServer } from 'node:net';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { sqlState } from '../../src/postgres/database.js';
import { Postgres } from '../../src/postgres/pool.js';
import { freePort } from '../harness/free-port.js';
import { eventually } from '../harness/poll.js';
import { type PostgresProcess, startPostgres } from '../harness/postgres.js';
import { startTcpProxy, type TcpProxy } from '../harness/tcp-proxy.js';

/** 0.7 s to connect and 1 s to run; the rest is for a busy machine. */
const BOUND_MS = 2200;

const SLEEPERS = `select count(*)::int as count from pg_stat_activity where query like 'select pg_sleep%'`;

let server: PostgresProcess;
let proxy: TcpProxy;

beforeAll(async () => {
  server = await startPostgres();
  proxy = await startTcpProxy(server.port);
});
afterAll(async () => {
  await proxy.stop();
  await server.stop();
});

/** Through the proxy, for the time of the test. */
function open(size = 2): Postgres {
  const database = new Postgres({ url: server.urlOf('postgres', proxy.port), size });
  onTestFinished(() => database.close());
  return database;
}

interface Outcome {
  readonly error: Error | undefined;
  readonly tookMs: number;
}

async function outcomeOf(work: Promise<unknown>): Promise<Outcome> {
  const startedAt = performance.now();
  const error = await work.then(
    () => undefined,
    (reason: Error) => reason,
  );
  return { error, tookMs: performance.now() - startedAt };
}

describe('a black hole', () => {
  it('holds up no statement for longer than its bound, and ends by itself', async () => {
    const database = open();
    await database.query('select 1');
    await database.ping();
    proxy.blackhole(true);
    onTestFinished(() => proxy.blackhole(false));
    const work = [
      ...Array.from({ length: 6 }, () => database.query('select 1')),
      database.transaction(async ({ query }) => query('select 1')),
      database.ping(),
      database.listen(
        'of_tests',
        () => {},
        () => {},
      ),
    ];
    const outcomes = await Promise.all(work.map(outcomeOf));
    for (const { error, tookMs } of outcomes) {
      expect(error).toBeInstanceOf(Error);
      expect(sqlState(error)).toBeUndefined();
      expect(tookMs).toBeLessThan(BOUND_MS);
    }
    proxy.blackhole(false);
    await eventually(() => database.query('select 1').then(() => {}), { withinMs: 3000 });
    await eventually(() => database.ping(), { withinMs: 3000 });
  });

  it('that swallows a listening connection is noticed by a proof, once', async () => {
    const database = open();
    let lost = 0;
    const listening = await database.listen(
      'of_tests',
      () => {},
      () => lost++,
    );
    await listening.prove();
    proxy.blackhole(true);
    onTestFinished(() => proxy.blackhole(false));
    const { error, tookMs } = await outcomeOf(listening.prove());
    expect(error).toBeInstanceOf(Error);
    expect(tookMs).toBeLessThan(1500);
    expect(lost).toBe(1);
    await expect(listening.prove()).rejects.toThrow();
    proxy.blackhole(false);
    await listening.close();
    expect(lost).toBe(1);
  });

  it('does not hold up the close', async () => {
    const database = open();
    await database.query('select 1');
    await database.listen(
      'of_tests',
      () => {},
      () => {},
    );
    await database.ping();
    proxy.blackhole(true);
    onTestFinished(() => proxy.blackhole(false));
    const waiting = Promise.allSettled([
      database.query('select 1'),
      database.query('select 1'),
      database.query('select 1'),
    ]);
    const { tookMs } = await outcomeOf(database.close());
    expect(tookMs).toBeLessThan(2500);
    for (const { status } of await waiting) expect(status).toBe('rejected');
  });

  it('has one ping at a time, which every asker shares', async () => {
    const database = open();
    await database.ping();
    proxy.blackhole(true);
    onTestFinished(() => proxy.blackhole(false));
    const before = proxy.connections;
    const outcomes = await Promise.all(Array.from({ length: 20 }, () => outcomeOf(database.ping())));
    expect(proxy.connections - before).toBeLessThanOrEqual(1);
    for (const { error, tookMs } of outcomes) {
      expect(error).toBeInstanceOf(Error);
      expect(tookMs).toBeLessThan(1400);
    }
  });
});

describe('connections that break', () => {
  it('fail what runs on them, and the next statement has new ones', async () => {
    const database = open();
    await database.query('select 1');
    const slow = outcomeOf(database.query('select pg_sleep(0.5)'));
    await eventually(async () => expect(await server.query(SLEEPERS)).toEqual([{ count: 1 }]));
    proxy.rst();
    const { error } = await slow;
    expect(error).toBeInstanceOf(Error);
    expect(sqlState(error)).toBeUndefined();
    expect(await database.query('select 1 as a')).toEqual([{ a: 1 }]);
  });

  it('between two statements of a transaction roll it back', async () => {
    const database = open();
    await database.query('create table if not exists broken (id int)');
    const work = database.transaction(async ({ query }) => {
      await query('insert into broken values (1)');
      proxy.rst();
      await eventually(() => proxy.connections === 0);
      await query('insert into broken values (2)');
    });
    await expect(work).rejects.toThrow();
    expect(await database.query('select id from broken')).toEqual([]);
  });

  it('while idle or listening are noticed, and nothing is thrown where nobody listens', async () => {
    const database = open();
    await Promise.all([database.query('select 1'), database.query('select 1'), database.ping()]);
    let lost = 0;
    const listening = await database.listen(
      'of_tests',
      () => {},
      () => lost++,
    );
    await server.shutDown('immediate');
    await eventually(() => lost === 1);
    await expect(listening.prove()).rejects.toThrow();
    await expect(database.ping()).rejects.toThrow();
    const { error, tookMs } = await outcomeOf(database.query('select 1'));
    expect(error).toBeInstanceOf(Error);
    expect(tookMs).toBeLessThan(BOUND_MS);
    await server.start();
    await database.ping();
    expect(await database.query('select 1 as a')).toEqual([{ a: 1 }]);
    expect(lost).toBe(1);
  });
});

describe('a statement that takes long', () => {
  it('is ended by the server, which says so, and its connection serves on', async () => {
    const database = open(1);
    const backend = 'select pg_backend_pid() as pid';
    const before = await database.query(backend);
    const { error, tookMs } = await outcomeOf(database.query('select pg_sleep(30)'));
    expect(sqlState(error)).toBe('57014');
    expect(tookMs).toBeLessThan(BOUND_MS);
    expect(await database.query(backend)).toEqual(before);
  });

  it('is given up at once by an abort, and the server is rid of it soon', async () => {
    const database = open(1);
    const abort = new AbortController();
    const answer = outcomeOf(database.queryUntil(abort.signal, 'select pg_sleep(30)'));
    await eventually(async () => expect(await server.query(SLEEPERS)).toEqual([{ count: 1 }]));
    const abortedAt = performance.now();
    abort.abort(new Error('nobody waits any more'));
    expect((await answer).error?.message).toBe('nobody waits any more');
    expect(performance.now() - abortedAt).toBeLessThan(300);
    // the connection is free for others before the server has noticed
    expect(await database.query('select 1 as a')).toEqual([{ a: 1 }]);
    await eventually(async () => expect(await server.query(SLEEPERS)).toEqual([{ count: 0 }]), { withinMs: 2000 });
  });

  it('has a bound that its URL cannot lift', async () => {
    const url = `${server.url}?statement_timeout=60000&query_timeout=60000`;
    const database = new Postgres({ url, size: 1 });
    onTestFinished(() => database.close());
    expect(await database.query(`select current_setting('statement_timeout') as bound`)).toEqual([{ bound: '800ms' }]);
  });

  it('has none at the start of a connection behind PgBouncer, which refuses that', async () => {
    const database = new Postgres({ url: `${server.url}?pgbouncer=true`, size: 1 });
    onTestFinished(() => database.close());
    expect(await database.query(`select current_setting('statement_timeout') as bound`)).toEqual([{ bound: '0' }]);
    const { error, tookMs } = await outcomeOf(database.query('select pg_sleep(3)'));
    expect(error).toBeInstanceOf(Error);
    expect(tookMs).toBeLessThan(BOUND_MS);
  });
});

it('a connection that is lost while it begins to listen is an error of who asked, and of nobody else', async () => {
  // between the question and its answer: a network that resets just there
  const relay = createServer((client) => {
    const upstream = connect(server.port, '127.0.0.1');
    upstream.on('error', () => {});
    client.on('error', () => upstream.destroy());
    upstream.pipe(client);
    client.on('data', (chunk) => (chunk.includes('listen "') ? client.resetAndDestroy() : upstream.write(chunk)));
    client.on('close', () => upstream.destroy());
  });
  const port = await freePort();
  await new Promise<void>((resolve) => relay.listen(port, '127.0.0.1', resolve));
  onTestFinished(() => void relay.close());
  const database = new Postgres({ url: server.urlOf('postgres', port), size: 1 });
  onTestFinished(() => database.close());
  let lost = 0;
  const listening = database.listen(
    'of_tests',
    () => {},
    () => lost++,
  );
  await expect(listening).rejects.toThrow();
  // what nobody catches ends a pod, and fails this run
  await new Promise(setImmediate);
  expect(lost).toBe(0);
});

it('no error holds the password', async () => {
  const url = new URL(server.url);
  url.password = 'not-the-password';
  const urls = [
    url.href,
    server.urlOf('postgres', 1),
    `${server.url}x`,
    'postgres://u:a-password-of-tests@nowhere.invalid/x',
  ];
  for (const wrong of urls) {
    const database = new Postgres({ url: wrong, size: 1 });
    const asks = [
      () => database.query('select 1'),
      () => database.ping(),
      () =>
        database.listen(
          'x',
          () => {},
          () => {},
        ),
    ];
    for (const ask of asks) {
      const error: unknown = await ask().catch((reason: unknown) => reason);
      expect(error).toBeInstanceOf(Error);
      const { stack, ...fields } = error as Error & Record<string, unknown>;
      expect(`${stack} ${JSON.stringify(fields)} ${(error as Error).message}`).not.toMatch(
        /not-the-password|a-password-of/,
      );
    }
    expect(database.place).not.toContain('password');
    await database.close();
  }
});
