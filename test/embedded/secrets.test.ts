import { stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { embeddedSecrets } from '../../src/embedded/secrets.js';
import { temporaryFolder } from './fixtures.js';

describe('embedded secrets', () => {
  it('are made once, stay the same, and only their owner can read them', async () => {
    const dir = await temporaryFolder();
    const first = await embeddedSecrets(dir);
    expect(await embeddedSecrets(dir)).toEqual(first);
    expect(first.jwtSecret.length).toBeGreaterThanOrEqual(32);
    expect(first.apiKey).toMatch(/^hf_[\w-]{32,}$/);
    expect((await stat(join(dir, 'secrets.json'))).mode & 0o777).toBe(0o600);
  });

  it('differ from folder to folder', async () => {
    const one = await embeddedSecrets(await temporaryFolder());
    const other = await embeddedSecrets(await temporaryFolder());
    expect(one.jwtSecret).not.toBe(other.jwtSecret);
    expect(one.apiKey).not.toBe(other.apiKey);
  });

  it('are never replaced in silence when the file is damaged', async () => {
    const dir = await temporaryFolder();
    await writeFile(join(dir, 'secrets.json'), '');
    await expect(embeddedSecrets(dir)).rejects.toThrow(/^[^\n]*secrets\.json is damaged[^\n]*$/);
  });
});
