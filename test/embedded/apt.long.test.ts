import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { fetchFromApt } from '../../src/embedded/apt.js';
import { temporaryFolder } from './fixtures.js';

it('is there for both of two that fetch it at once', { timeout: 120_000 }, async () => {
  const dir = join(await temporaryFolder(), 'tree');
  const [one, other] = await Promise.all([fetchFromApt(['redis-tools'], dir), fetchFromApt(['redis-tools'], dir)]);
  expect(one).toEqual(other);
  expect(await readdir(join(dir, 'usr/bin'))).toContain('redis-cli');
});
