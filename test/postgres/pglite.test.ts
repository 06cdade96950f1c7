import { execFile } from 'node:child_process';
import { cp, mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { describe, expect, it, onTestFinished } from 'vitest';
import { startEmbedded } from '../../src/embedded/index.js';
import { copyTo, open } from '../harness/pglite.js';
import { killWhileWriting } from './writing.js';

const DIST = fileURLToPath(new URL('../../dist', import.meta.url));

const execute = promisify(execFile);

async function temporaryFolder(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'holdfast-pglite-'));
  onTestFinished(() => rm(dir, { recursive: true, force: true }));
  return dir;
}

describe('a private Postgres', () => {
  it('is made whole: what an interrupted start left is thrown away', async () => {
    const folder = await temporaryFolder();
    await mkdir(join(folder, 'pg.new', 'base'), { recursive: true });
    const database = await open(folder);
    expect(await database.query('select 1 as a')).toEqual([{ a: 1 }]);
    await database.close();
    expect(await readdir(folder)).toEqual(['postgres']);
  });

  it('comes with the embedded start, schema and all, and keeps its data', async () => {
    const dir = await temporaryFolder();
    await copyTo(dir);
    const first = await startEmbedded({ dir, hasDatabase: true });
    await first.database?.query(`insert into tenants (id) values ('kept')`);
    await first.stop();
    await expect(first.database?.query('select 1')).rejects.toThrow('closed');
    const second = await startEmbedded({ dir, hasDatabase: true });
    onTestFinished(() => second.stop());
    expect(await second.database?.query('select id, status from tenants')).toEqual([{ id: 'kept', status: 'active' }]);
    expect(process.exitCode).toBeUndefined();
  });

  it('is not there when nobody asked for it', async () => {
    const dir = await temporaryFolder();
    const embedded = await startEmbedded({ dir });
    onTestFinished(() => embedded.stop());
    expect(embedded.database).toBeUndefined();
    expect(await readdir(dir)).not.toContain('postgres');
  });

  it('is off where its package is not installed, and says so once', async () => {
    const dir = await temporaryFolder();
    await cp(DIST, join(dir, 'dist'), { recursive: true });
    await writeFile(join(dir, 'package.json'), '{"type":"module"}');
    const script = `
      import { openPglite } from './dist/embedded/pglite.js';
      const said = [];
      const database = await openPglite('.', { warn: (_, text) => said.push(text) });
      console.log(JSON.stringify({ isThere: database !== undefined, said }));
    `;
    const { stdout } = await execute(process.execPath, ['--input-type=module', '-e', script], { cwd: dir });
    expect(JSON.parse(stdout)).toEqual({
      isThere: false,
      said: [expect.stringMatching(/^admission is off: install @electric-sql\/pglite/)],
    });
    expect(await readdir(dir)).not.toContain('pg.new');
  });

  it('that is damaged ends the start in one line, and lets go of the folder', async () => {
    const dir = await temporaryFolder();
    await mkdir(join(dir, 'postgres'));
    await execute('sh', ['-c', `echo 17 > ${join(dir, 'postgres', 'PG_VERSION')}`]);
    await expect(startEmbedded({ dir, hasDatabase: true })).rejects.toThrow(
      /^the private Postgres in [^\n]* does not start: [^\n]*$/,
    );
    const next = await startEmbedded({ dir });
    await next.stop();
  });

  it('has everything that was committed before a kill -9', async () => {
    const dir = await temporaryFolder();
    await copyTo(dir);
    for (let round = 0; round < 2; round++) {
      const { acknowledged, stored } = await killWhileWriting(dir, 50);
      expect(acknowledged).toBeGreaterThanOrEqual(50);
      // the one that was under way may be there too
      expect(stored - acknowledged).toBeGreaterThanOrEqual(0);
      expect(stored - acknowledged).toBeLessThanOrEqual(1);
    }
  });
});
