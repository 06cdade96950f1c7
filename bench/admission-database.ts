import { Client } from 'pg';
import { untilServing } from '../src/postgres/serving.js';
import { type PostgresProcess, startPostgres } from '../test/harness/postgres.js';
import { cpuUs } from './cpu-time.js';

export const TENANT = 'bench';

/** A Postgres with the relay's schema, a tenant and its paired devices, `user-<n>` with `device-<n>`; looked at from outside. */
export class AdmissionDatabase implements AsyncDisposable {
  private constructor(
    readonly server: PostgresProcess,
    readonly url: string,
    /** In a database of its own, so that what it asks isn't counted. */
    private readonly observer: Client,
  ) {}

  static async start(devices: number): Promise<AdmissionDatabase> {
    const server = await startPostgres({ config: { shared_preload_libraries: 'pg_stat_statements' } });
    try {
      const url = await server.createDatabase();
      await untilServing({
        url,
        name: 'bench',
        mayMigrate: true,
        withinMs: 10_000,
        onRefused: () => {},
        signal: new AbortController().signal,
      });
      await server.query('insert into tenants (id) values ($1)', [TENANT], url);
      await server.query(
        `insert into devices (tenant, user_id, id, paired_at)
         select $1, 'user-' || n, 'device-' || n, now() from generate_series(0, $2::int - 1) as n`,
        [TENANT, devices],
        url,
      );
      // the harness has no autovacuum, and a planner that knows nothing of the tables plans as nobody's does
      await server.query('analyze', [], url);
      const observer = new Client(server.url);
      observer.on('error', () => {});
      await observer.connect();
      await observer.query('create extension pg_stat_statements');
      return new AdmissionDatabase(server, url, observer);
    } catch (error) {
      await server.stop();
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // a server that hangs answers no goodbye
    const ended = this.observer.end();
    await this.server.stop();
    await ended;
  }

  /** That clients of the database have run so far: each is a round trip. */
  async statements(): Promise<number> {
    const { rows } = await this.observer.query(
      `select coalesce(sum(calls), 0)::int8 as calls from pg_stat_statements
       where toplevel and dbid = (select oid from pg_database where datname = $1)`,
      [new URL(this.url).pathname.slice(1)],
    );
    return Number(rows[0].calls);
  }

  /** µs of its present processes; the relay's connections outlive a round. */
  async cpu(): Promise<number> {
    const { rows } = await this.observer.query('select pid from pg_stat_activity where pid <> pg_backend_pid()');
    const pids = [this.server.pid, ...rows.map(({ pid }) => Number(pid))];
    // a connection may end between the two looks
    const times = await Promise.all(pids.map((pid) => cpuUs(pid).catch(() => 0)));
    return times.reduce((sum, us) => sum + us, 0);
  }
}
