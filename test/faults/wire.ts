import { sleep } from '../../src/core/sleep.js';
import { eventually } from '../harness/poll.js';
import type { TcpProxy } from '../harness/tcp-proxy.js';
import type { Group } from './scenario.js';
import type { Stage } from './stage.js';

/** The first pod's way to Redis: the second one's stays whole. */
function wireOf({ proxies: [first] }: Stage): TcpProxy {
  if (!first) throw new Error('a stage without proxies');
  return first;
}

function killClients(types: readonly string[]) {
  return async ({ admin }: Stage): Promise<void> => {
    for (let round = 0; round < 5; round++) {
      for (const type of types) {
        const kill = async () => Number(await admin.call('CLIENT', 'KILL', 'TYPE', type, 'SKIPME', 'yes'));
        // those that were killed before may not be back yet
        await eventually(async () => (await kill()) > 0, { what: `${type} connections` });
      }
      await sleep(300);
    }
  };
}

export const WIRE: Group = {
  name: 'between a pod and Redis',
  scenarios: [
    {
      name: 'RST of all connections, again and again',
      async inject(stage) {
        for (let round = 0; round < 5; round++) {
          await eventually(() => wireOf(stage).connections > 2, { what: 'the connections of the first pod' });
          wireOf(stage).rst();
          await sleep(300);
        }
      },
      expects: { hears: 'nothing' },
    },
    {
      name: 'a black hole',
      lastsMs: { short: 5000, long: 60_000 },
      inject: async (stage) => wireOf(stage).blackhole(true),
      heal: async (stage) => wireOf(stage).blackhole(false),
      expects: { hears: 'mayHaveHappened' },
    },
    {
      name: 'replies that are lost while requests arrive',
      lastsMs: { short: 3500, long: 30_000 },
      inject: async (stage) => wireOf(stage).dropReplies(true),
      async heal(stage) {
        wireOf(stage).dropReplies(false);
        // TCP loses nothing in the middle of a connection
        wireOf(stage).rst();
      },
      expects: { hears: 'mayHaveHappened' },
    },
    {
      name: 'CLIENT KILL of normal connections, again and again',
      inject: killClients(['normal']),
      expects: { hears: 'nothing' },
    },
    {
      name: 'CLIENT KILL of all connections, again and again',
      inject: killClients(['normal', 'pubsub']),
      expects: { hears: 'nothing' },
    },
  ],
};
