import { type Pod, startPod } from '../harness/pod.js';
import { type PostgresProcess, startPostgres } from '../harness/postgres.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy, type TcpProxy } from '../harness/tcp-proxy.js';

export interface RigOptions {
  readonly pods?: number;
  readonly env?: Readonly<Record<string, string>>;
}

/** Pods on one Redis and one Postgres, which they reach through a proxy of which tests can do with as a network does. */
export class AdmissionRig implements AsyncDisposable {
  private constructor(
    readonly redis: RedisProcess,
    readonly postgres: PostgresProcess,
    readonly proxy: TcpProxy,
    /** Of the database, past the proxy. */
    readonly databaseUrl: string,
    readonly pods: readonly Pod[],
    readonly settleMs: number,
  ) {}

  static async start({ pods: count = 2, env = {} }: RigOptions = {}): Promise<AdmissionRig> {
    const [redis, postgres] = await Promise.all([startRedis({ aof: 'off' }), startPostgres()]);
    const proxy = await startTcpProxy(postgres.port);
    const databaseUrl = await postgres.createDatabase();
    const throughProxy = databaseUrl.replace(`:${postgres.port}/`, `:${proxy.port}/`);
    const pods = await Promise.all(
      Array.from({ length: count }, (_, index) =>
        startPod({
          redisUrl: redis.url,
          name: `pod-${index}`,
          env: { DATABASE_URL: throughProxy, HOLDFAST_ADMISSION_REVALIDATE_MS: '10s', ...env },
        }),
      ),
    );
    return new AdmissionRig(redis, postgres, proxy, databaseUrl, pods, Number(env.HOLDFAST_SETTLE_MS ?? 2500));
  }

  pod(index: number): Pod {
    const pod = this.pods[index];
    if (!pod) throw new Error(`the rig has no pod ${index}`);
    return pod;
  }

  /** Past the proxy and the relay, as an operator at `psql` would. */
  sql(text: string, values: unknown[] = []): Promise<Record<string, unknown>[]> {
    return this.postgres.query(text, values, this.databaseUrl);
  }

  async archive(tenant: string): Promise<void> {
    await this.sql(
      "insert into tenants (id, status) values ($1, 'archived') on conflict (id) do update set status = 'archived'",
      [tenant],
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.pods.map((pod) => pod.stop()));
    await Promise.all([this.proxy.stop(), this.postgres.stop(), this.redis.stop()]);
  }
}
