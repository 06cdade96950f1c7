import { test } from 'vitest';
import { startRedis } from '../harness/redis.js';
import { killInTurn } from './kill-in-turn.js';

test('SIGKILL of a server under traffic, 22 times in turn: nothing lost, doubled or out of order', async () => {
  await using redis = await startRedis({ aof: 'off' });
  await killInTurn(redis, 22);
});
