// REDIS_URL=… DATABASE_URL=… node audit-writer.js: each event in Postgres, exactly once
import { createLog } from 'holdfast/log';
import pg from 'pg';

const { REDIS_URL = 'redis://127.0.0.1:6379', TOPIC = 'events', DATABASE_URL } = process.env;
const pool = new pg.Pool({ connectionString: DATABASE_URL, max: 16 });
await pool.query(`
  create table if not exists handled (position text primary key, at timestamptz not null);
  create table if not exists audit (at timestamptz not null, tenant text not null, event text not null, data jsonb);
  create table if not exists totals (tenant text primary key, events bigint not null);
`);

const log = createLog(REDIS_URL, { topic: TOPIC });
const writer = log.group('audit', { from: 'earliest' }).run(write, { concurrency: 16 });
await writer.ready;
console.log(`writes ${TOPIC}`);

for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, () => log.close());
await writer.ended;
await pool.end();

/** The position goes in with what it caused: an entry that comes again finds it there, also if it came to another process. */
async function write({ position, at, tenant, event, data }) {
  const client = await pool.connect();
  let error;
  try {
    await client.query('begin');
    const mark = 'insert into handled values ($1, $2) on conflict do nothing';
    const { rowCount } = await client.query(mark, [position, at]);
    if (rowCount === 1) {
      await client.query('insert into audit values ($1, $2, $3, $4)', [at, tenant, event, JSON.stringify(data)]);
      const count = 'insert into totals values ($1, 1) on conflict (tenant) do update set events = totals.events + 1';
      await client.query(count, [tenant]);
    }
    await client.query('commit');
  } catch (cause) {
    error = cause;
    throw cause;
  } finally {
    // one that failed in the middle of a transaction is not used again
    client.release(error);
  }
}
