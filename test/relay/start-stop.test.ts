import { connect } from 'node:net';
import { Redis } from 'ioredis';
import { expect, it } from 'vitest';
import { loadConfig } from '../../src/config.js';
import { silentLogger } from '../../src/core/ports.js';
import { sleep, within } from '../../src/core/sleep.js';
import { createMeter } from '../../src/ops/index.js';
import { Relay } from '../../src/relay.js';
import { freePort } from '../harness/free-port.js';
import { startRedis } from '../harness/redis.js';
import { TEST_JWT_SECRET } from '../harness/token.js';

function isBound(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.on('error', () => {});
    socket.on('connect', () => socket.destroy());
    socket.on('close', (hadError) => resolve(!hadError));
  });
}

it('a stop at any moment of a start ends both soon, and leaves nothing bound and no lease', async () => {
  await using redis = await startRedis();
  const client = new Redis(redis.url);
  const [port, opsPort] = [await freePort(), await freePort()];
  const { config } = loadConfig({
    PORT: String(port),
    OPS_PORT: String(opsPort),
    HOLDFAST_HOST: '127.0.0.1',
    HOLDFAST_OPS_HOST: '127.0.0.1',
    REDIS_URL: redis.url,
    HOLDFAST_POD: 'pod-a',
    HOLDFAST_JWT_SECRET: TEST_JWT_SECRET,
  });
  for (let afterMs = 0; afterMs <= 400; afterMs += 40) {
    const faults: unknown[] = [];
    const logger = { ...silentLogger, error: (fields: object) => void faults.push(fields) };
    const options = { config, redisUrl: redis.url, isEmbedded: true, logger, meter: createMeter(), onFatal: () => {} };
    const relay = new Relay(options);
    const starting = relay.start().then(
      () => 'started',
      (error: Error) => error.message,
    );
    await sleep(afterMs);
    expect(
      await within(
        15_000,
        relay.stop().then(() => 'stopped'),
      ),
    ).toBe('stopped');
    const outcome = await within(5000, starting);
    expect(outcome).toMatch(/^(started|stopped while (starting|waiting for Redis))$/);
    expect(faults).toEqual([]);
    expect([await isBound(port), await isBound(opsPort)]).toEqual([false, false]);
    expect(await client.zcard('hf:{pods}:processes')).toBe(0);
  }
  client.disconnect();
});
