import { execFile } from 'node:child_process';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { FatalError } from '../../src/core/errors.js';
import { fetchFromApt } from '../../src/embedded/apt.js';
import { findRedis } from '../../src/embedded/find-redis.js';
import { temporaryFolder } from './fixtures.js';

describe('a private apt copy', () => {
  it('serves a start on a machine without Redis, and leaves nothing beside it', { timeout: 120_000 }, async () => {
    const dir = await temporaryFolder();
    const { file, version, env } = await findRedis({ dir, places: [] });
    expect(file).toBe(join(dir, 'redis-apt/usr/bin/redis-server'));
    expect(Number.parseInt(version, 10)).toBeGreaterThanOrEqual(7);
    const { stdout } = await promisify(execFile)(file, ['--version'], { env });
    expect(stdout).toContain(`v=${version}`);
    expect(await readdir(dir)).toEqual(['redis-apt']);
  });

  it('is used as it is when it exists', async () => {
    const dir = await temporaryFolder();
    expect((await fetchFromApt(['no-such-package'], dir)).root).toBe(dir);
  });

  it('says in one line what apt lacks, and keeps nothing', { timeout: 120_000 }, async () => {
    const dir = await temporaryFolder();
    const failure = await fetchFromApt(['holdfast-no-such-package'], join(dir, 'tree')).catch((error) => error);
    expect(failure).toBeInstanceOf(FatalError);
    expect(failure.message).toMatch(/^apt-get: .*holdfast-no-such-package$/);
    expect(await readdir(dir)).toEqual([]);
  });
});
