import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it, onTestFinished } from 'vitest';
import { connect } from '../harness/client.js';
import { freePort } from '../harness/free-port.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { ALL_CAPS, TEST_JWT_SECRET, token } from '../harness/token.js';

const MAIN = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));

/** The writing end of a pipe that is full, and that nobody will ever read. */
function fullPipe(): number {
  const dir = mkdtempSync(join(tmpdir(), 'holdfast-pipe-'));
  const path = join(dir, 'pipe');
  execFileSync('mkfifo', [path]);
  const reader = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  const filler = openSync(path, constants.O_WRONLY | constants.O_NONBLOCK);
  const writer = openSync(path, constants.O_WRONLY);
  onTestFinished(() => {
    for (const fd of [reader, filler, writer]) closeSync(fd);
    rmSync(dir, { recursive: true });
  });
  for (const chunk of [Buffer.alloc(65_536, 'x'), Buffer.alloc(1, 'x')])
    for (;;)
      try {
        writeSync(filler, chunk);
      } catch {
        break;
      }
  return writer;
}

it('a relay whose stdout is full from the start serves, drains and ends', async () => {
  await using redis = await startRedis();
  const [port, opsPort] = [await freePort(), await freePort()];
  const env = {
    PATH: process.env.PATH,
    PORT: String(port),
    OPS_PORT: String(opsPort),
    REDIS_URL: redis.url,
    HOLDFAST_POD: 'pod-a',
    HOLDFAST_JWT_SECRET: TEST_JWT_SECRET,
    HOLDFAST_DRAIN_MS: '300ms',
    HOLDFAST_OPS_LOG_BUFFER_BYTES: '1024',
    LOG_LEVEL: 'trace',
  };
  const relay = spawn(process.execPath, [MAIN, 'serve'], { env, stdio: ['ignore', fullPipe(), 'inherit'] });
  onTestFinished(() => void relay.kill('SIGKILL'));
  const exit = once(relay, 'exit');
  const ready = async (): Promise<void> =>
    expect((await fetch(`http://127.0.0.1:${opsPort}/_readiness`)).status).toBe(200);
  await eventually(ready, { withinMs: 30_000 });
  await using client = await connect(`http://127.0.0.1:${port}`, {
    token: await token({ sub: 'ann', caps: ALL_CAPS }),
  });
  await client.subscribe('news');
  expect(await client.publish({ room: 'news', event: 'tick', data: 1 })).toMatchObject({ ok: true });
  await eventually(() => client.received.length === 1, { withinMs: 10_000 });
  await redis.restart();
  await eventually(
    async () => expect(await client.publish({ room: 'news', event: 'tick' })).toMatchObject({ ok: true }),
    {
      withinMs: 20_000,
    },
  );
  await ready();
  relay.kill('SIGTERM');
  expect(await exit).toEqual([0, null]);
});
