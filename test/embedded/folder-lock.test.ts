import { writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { FatalError } from '../../src/core/errors.js';
import { lockFolder, readHolder } from '../../src/embedded/folder-lock.js';
import { launch } from './children.js';
import { temporaryFolder } from './fixtures.js';

async function contend(dir: string, count: number) {
  const children = await Promise.all(Array.from({ length: count }, () => launch('lock', dir)));
  onTestFinished(async () => void (await Promise.all(children.map((child) => child.kill()))));
  const holders = children.filter((child) => child.said.ok);
  return { holders, refused: children.filter((child) => !child.said.ok) };
}

describe('the lock of a folder', () => {
  it('has one holder of eight that race, after each kill -9 of the former one', { timeout: 60_000 }, async () => {
    const dir = await temporaryFolder();
    for (let round = 0; round < 2; round++) {
      const { holders, refused } = await contend(dir, 8);
      expect(holders).toHaveLength(1);
      for (const { said } of refused) {
        expect(said.name).toBe('FatalError');
        expect(said.message).toMatch(new RegExp(`^${dir} is in use by process ${holders[0]?.process.pid}: .*$`));
      }
      expect((await readHolder(dir))?.pid).toBe(holders[0]?.process.pid);
      await holders[0]?.kill();
      expect(await readHolder(dir)).toBeUndefined();
    }
  });

  it('stays with a holder that is stopped', { timeout: 30_000 }, async () => {
    const dir = await temporaryFolder();
    const { holders } = await contend(dir, 1);
    holders[0]?.process.kill('SIGSTOP');
    await expect(lockFolder(dir)).rejects.toThrow(/is in use/);
  });

  it('passes on when it is released', async () => {
    const dir = await temporaryFolder();
    const first = await lockFolder(dir);
    await expect(lockFolder(dir)).rejects.toThrow(FatalError);
    first.release();
    const second = await lockFolder(dir);
    second.release();
  });

  it('is free when a stranger has got the port of a dead holder', async () => {
    const dir = await temporaryFolder();
    const stranger = createServer((socket) => void socket.write('220 ready\r\n')).listen(0, '127.0.0.1');
    onTestFinished(() => void stranger.close());
    await new Promise((resolve) => stranger.once('listening', resolve));
    const { port } = stranger.address() as { port: number };
    await writeFile(join(dir, 'lock.7'), JSON.stringify({ pid: 1, port, nonce: 'a'.repeat(32) }));
    (await lockFolder(dir)).release();
  });

  it('is free when a power cut left it empty', async () => {
    const dir = await temporaryFolder();
    await writeFile(join(dir, 'lock.3'), '');
    (await lockFolder(dir)).release();
  });

  it('says in one line that a folder cannot be written', async () => {
    const file = join(await temporaryFolder(), 'file');
    await writeFile(file, '');
    for (const dir of ['/proc/holdfast', file, join(file, 'below')]) {
      const failure = await lockFolder(dir).catch((error) => error);
      expect(failure).toBeInstanceOf(FatalError);
      expect(failure.message).toMatch(/^\S+ cannot be written \(E[A-Z]+\): .*HOLDFAST_DATA_DIR.*$/);
    }
  });
});
