import { chmod, mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { FatalError } from '../../src/core/errors.js';
import { findRedis } from '../../src/embedded/find-redis.js';
import { temporaryFolder } from './fixtures.js';

async function program(dir: string, name: string, version: string): Promise<string> {
  await mkdir(dir, { recursive: true });
  const file = join(dir, name);
  await writeFile(file, `#!/bin/sh\necho 'Server v=${version} sha=00000000:0'\n`);
  await chmod(file, 0o755);
  return file;
}

describe('the search for a Redis', () => {
  it('takes the first that is new enough, also a Valkey', async () => {
    const dir = await temporaryFolder();
    await program(join(dir, 'old'), 'redis-server', '6.2.14');
    const valkey = await program(join(dir, 'new'), 'valkey-server', '8.0.1');
    const found = await findRedis({ dir, places: ['old', 'none', 'new'].map((place) => join(dir, place)) });
    expect(found).toEqual({ file: valkey, version: '8.0.1', env: {} });
  });

  it('says in one line how to get one', async () => {
    const dir = await temporaryFolder();
    await program(join(dir, 'redis-apt/usr/bin'), 'redis-server', '6.0.16');
    const failure = await findRedis({ dir, places: [] }).catch((error) => error);
    expect(failure).toBeInstanceOf(FatalError);
    expect(failure.message).toMatch(/^no redis-server 7\.0 .*apt install.*brew install.*docker run.*REDIS_URL=.*$/);
  });
});
