import { Redis } from 'ioredis';
import { eventually } from '../harness/poll.js';
import { type RedisOptions, type RedisProcess, startRedis } from '../harness/redis.js';
import type { Group } from './scenario.js';
import type { Stage } from './stage.js';

/** A replica is given its copy at once. */
const SOON: RedisOptions = { config: { 'repl-diskless-sync-delay': '0' } };

export const FAILOVER: Group = {
  name: 'another Redis takes over',
  stage: { redis: SOON },
  scenarios: [
    {
      name: "a planned one (FAILOVER), with the pods' addresses moved behind it",
      async inject(stage) {
        const replica = await replicaOf(stage);
        await stage.admin.call('FAILOVER', 'TO', '127.0.0.1', replica.port);
        await eventually(async () => (await stage.admin.role())[0] === 'slave', { what: 'the change of roles' });
        await stage.moveTo(replica);
      },
      expects: { hears: 'anything' },
    },
    {
      name: 'one that had not got all (promotion of a replica that lags)',
      async inject(stage) {
        const replica = await replicaOf(stage);
        const promoted = new Redis(replica.url);
        const accepted = stage.publishers?.accepted ?? 0;
        await promoted.replicaof('NO', 'ONE');
        promoted.disconnect();
        await eventually(() => (stage.publishers?.accepted ?? 0) > accepted + 10, { what: 'what will be forgotten' });
        await stage.moveTo(replica);
      },
      expects: { epoch: ['behind', 'forked'], hears: 'anything' },
    },
  ],
};

/** In step with the stage's Redis. */
async function replicaOf(stage: Stage): Promise<RedisProcess> {
  const replica = await startRedis({ aof: 'off', ...SOON });
  stage.owns(replica);
  const client = new Redis(replica.url);
  await client.replicaof('127.0.0.1', stage.redis.port);
  const isOnline = async (): Promise<boolean> =>
    (await stage.admin.info('replication')).includes(`port=${replica.port},state=online`);
  await eventually(isOnline, { withinMs: 15_000, what: 'the replica' });
  client.disconnect();
  return replica;
}
