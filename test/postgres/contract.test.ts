import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Database, sqlState } from '../../src/postgres/database.js';
import { eventually } from '../harness/poll.js';
import { ENGINES, type Engine, SIZE } from './engines.js';

const TABLE =
  'create table if not exists things (id text primary key, hash bytea, tags text[], at timestamptz, n int8)';

/** Runs `work` while transactions hold every connection. */
async function whileAllAreTaken(database: Database, work: () => Promise<void>): Promise<void> {
  const over = new AbortController();
  const untilOver = new Promise<void>((resolve) => over.signal.addEventListener('abort', () => resolve()));
  let taken = 0;
  const holds = Array.from({ length: database.size }, () =>
    database.transaction(async () => {
      taken++;
      await untilOver;
    }),
  );
  try {
    await eventually(() => taken === database.size);
    await work();
  } finally {
    over.abort();
    await Promise.allSettled(holds);
  }
}

describe.each(Object.entries(ENGINES))('a database: %s', (_, start) => {
  let engine: Engine;
  let database: Database;

  beforeAll(async () => {
    engine = await start();
    database = engine.database;
    await database.query(TABLE);
  });
  afterAll(() => engine[Symbol.asyncDispose]());

  const idsLike = async (prefix: string): Promise<unknown[]> =>
    (await database.query('select id from things where id like $1 order by id', [`${prefix}%`])).map(({ id }) => id);

  describe('statements', () => {
    it('give back what was put in', async () => {
      const at = new Date('2026-01-02T03:04:05.678Z');
      const hash = Buffer.alloc(32, 7);
      await database.query('insert into things values ($1, $2, $3, $4, $5)', [
        'ö€😀"\'\\',
        hash,
        ['a', '"b,{}\\', null],
        at,
        7,
      ]);
      const [row] = await database.query(
        'select id, hash, tags, at, n::text, null as nothing from things where hash = $1',
        [hash],
      );
      expect({ ...row, hash: Buffer.from(row?.hash as Uint8Array) }).toEqual({
        id: 'ö€😀"\'\\',
        hash,
        tags: ['a', '"b,{}\\', null],
        at,
        n: '7',
        nothing: null,
      });
    });

    it('answer many keys at once, in the order that they were asked for', async () => {
      const rows = await database.query(
        `select k.a, k.b, k.at::int from unnest($1::text[], $2::text[]) with ordinality as k(a, b, at)`,
        [
          ['x', 'y'],
          ['1', null],
        ],
      );
      expect(rows).toEqual([
        { a: 'x', b: '1', at: 1 },
        { a: 'y', b: null, at: 2 },
      ]);
    });

    it('may be several, and the last one answers', async () => {
      expect(await database.query('select 1 as a; select 2 as b')).toEqual([{ b: 2 }]);
      expect(await database.query('select 1 where false')).toEqual([]);
    });

    it.each([
      ['22P02', 'select $1::int', ['x']],
      ['22021', 'select $1::text', ['a\0b']],
      ['42P01', 'select * from nowhere', undefined],
      ['42601', 'selct', undefined],
      ['23505', `insert into things (id) values ('twice'), ('twice')`, undefined],
    ])('that the server refuses say why: %s', async (code, text, values) => {
      const error: unknown = await database.query(text, values).catch((reason: unknown) => reason);
      expect(sqlState(error)).toBe(code);
      expect(Object.values(error as object).flat()).not.toContain(values?.[0] ?? 'nothing');
      expect(await database.query('select 1 as a')).toEqual([{ a: 1 }]);
    });

    it('are under way at once in any number, and all answered', async () => {
      const rows = await Promise.all(Array.from({ length: 100 }, (_, n) => database.query('select $1::int as n', [n])));
      expect(rows.map(([row]) => row?.n)).toEqual(Array.from({ length: 100 }, (_, n) => n));
    });
  });

  describe('a transaction', () => {
    it('commits all of its work, and gives back its result', async () => {
      const result = await database.transaction(async ({ query }) => {
        await query('insert into things (id) values ($1)', ['commit-1']);
        await query('insert into things (id) values ($1)', ['commit-2']);
        return 'done';
      });
      expect(result).toBe('done');
      expect(await idsLike('commit-')).toEqual(['commit-1', 'commit-2']);
    });

    it('leaves nothing when its work throws', async () => {
      const work = database.transaction(async ({ query }) => {
        await query(`insert into things (id) values ('thrown')`);
        throw new Error('changed its mind');
      });
      await expect(work).rejects.toThrow('changed its mind');
      expect(await idsLike('thrown')).toEqual([]);
    });

    it('leaves nothing and fails when a statement failed, also when its work caught that', async () => {
      const work = database.transaction(async ({ query }) => {
        await query(`insert into things (id) values ('caught')`);
        await query('select 1/0').catch(() => {});
        return 'as if nothing had happened';
      });
      await expect(work).rejects.toMatchObject({ code: '22012' });
      expect(await idsLike('caught')).toEqual([]);
    });

    it('refuses a statement that comes after its end', async () => {
      let late: Promise<unknown> = Promise.resolve();
      await database.transaction(async ({ query }) => {
        late = new Promise((resolve) => setImmediate(resolve)).then(() =>
          query(`insert into things (id) values ('late')`),
        );
        late.catch(() => {});
      });
      await expect(late).rejects.toThrow('over');
      expect(await idsLike('late')).toEqual([]);
    });

    it('has no part in what others do meanwhile', async () => {
      let outside: Promise<unknown> = Promise.resolve();
      const work = database.transaction(async ({ query }) => {
        await query(`insert into things (id) values ('inside')`);
        outside = database.query(`insert into things (id) values ('outside')`);
        outside.catch(() => {});
        await query('select 1');
        throw new Error('changed its mind');
      });
      await expect(work).rejects.toThrow('changed its mind');
      await outside;
      expect(await idsLike('inside')).toEqual([]);
      expect(await idsLike('outside')).toEqual(['outside']);
    });
  });

  describe('notices', () => {
    it('are heard once they are committed, in order, and not of other channels', async () => {
      const heard: string[] = [];
      const listening = await database.listen(
        'of_tests',
        (payload) => heard.push(payload),
        () => heard.push('lost'),
      );
      await database
        .transaction(async ({ query }) => {
          await query(`select pg_notify('of_tests', 'never')`);
          throw new Error('no');
        })
        .catch(() => {});
      await database.query(`select pg_notify('of_others', 'never')`);
      await database.transaction(async ({ query }) => {
        await query(`select pg_notify('of_tests', 'first')`);
        await query(`select pg_notify('of_tests', $1)`, ['["tenant","ö"]']);
        expect(heard).toEqual([]);
      });
      await eventually(() => expect(heard).toEqual(['first', '["tenant","ö"]']));
      await listening.prove();
      await listening.close();
      await database.query(`select pg_notify('of_tests', 'after the close')`);
      await database.ping();
      expect(heard).toHaveLength(2);
    });

    it('keep the name of their channel as it is', async () => {
      const heard: string[] = [];
      const listening = await database.listen(
        'Of "Tests"',
        (payload) => heard.push(payload),
        () => {},
      );
      await database.query('select pg_notify($1, $2)', ['Of "Tests"', 'yes']);
      await eventually(() => expect(heard).toEqual(['yes']));
      await listening.close();
    });
  });

  describe('an abort', () => {
    it('before the statement begins keeps it from running', async () => {
      const abort = new AbortController();
      await whileAllAreTaken(database, async () => {
        const answer = database.queryUntil(abort.signal, `insert into things (id) values ('aborted')`);
        setImmediate(() => abort.abort(new Error('nobody waits any more')));
        await expect(answer).rejects.toThrow('nobody waits any more');
      });
      expect(await idsLike('aborted')).toEqual([]);
      await expect(database.queryUntil(abort.signal, 'select 1')).rejects.toThrow('nobody waits any more');
    });

    it('that comes too late changes nothing', async () => {
      const abort = new AbortController();
      expect(await database.queryUntil(abort.signal, 'select 1 as a')).toEqual([{ a: 1 }]);
      abort.abort();
      expect(await database.query('select 1 as a')).toEqual([{ a: 1 }]);
    });
  });

  it('answers a ping while everything is taken, and gives up a statement in time', async () => {
    await database.ping();
    await whileAllAreTaken(database, async () => {
      const startedAt = performance.now();
      const answer = database.query('select 1');
      answer.catch(() => {});
      await database.ping();
      expect(performance.now() - startedAt).toBeLessThan(600);
      await expect(answer).rejects.toThrow();
      expect(performance.now() - startedAt).toBeLessThan(2000);
    });
    expect(await database.query('select 1 as a')).toEqual([{ a: 1 }]);
  });

  it('that is closed ends what waits, refuses the rest, and closes once', async () => {
    const other = await engine.another();
    const lost: string[] = [];
    const listening = await other.listen(
      'of_tests',
      () => {},
      () => lost.push('lost'),
    );
    let waiting: Promise<PromiseSettledResult<unknown>[]> | undefined;
    let closing: Promise<void> | undefined;
    await whileAllAreTaken(other, async () => {
      waiting = Promise.allSettled(Array.from({ length: 5 }, () => other.query('select 1')));
      closing = other.close();
      expect(other.close()).toBe(closing);
    });
    await closing;
    expect((await waiting)?.map(({ status }) => status)).toEqual(Array.from({ length: 5 }, () => 'rejected'));
    await expect(other.query('select 1')).rejects.toThrow();
    await expect(other.ping()).rejects.toThrow();
    await listening.close();
    expect(lost).toEqual([]);
  });

  it('says where it is, without the password, and how much it does at once', () => {
    expect(database.size).toBe(engine.server ? SIZE : 1);
    expect(database.place).toMatch(engine.server ? /^127\.0\.0\.1:\d+$/ : /\/postgres$/);
  });
});
