import { describe, expect, it, onTestFinished } from 'vitest';
import { findEmbedded, startEmbedded } from '../../src/embedded/index.js';
import { launch } from './children.js';
import { clientOf, isAlive, pidOf, temporaryFolder, until } from './fixtures.js';

describe('a start without settings', { timeout: 30_000 }, () => {
  it('gives the same secrets and data at each start in a folder', async () => {
    const dir = await temporaryFolder();
    const first = await startEmbedded({ dir });
    await clientOf(first.url).set('kept', 'yes');
    await first.stop();
    const second = await startEmbedded({ dir });
    onTestFinished(() => second.stop());
    const { stop: _, announce: __, ...access } = second;
    expect(access).toEqual({ url: first.url, jwtSecret: first.jwtSecret, apiKey: first.apiKey });
    expect(await clientOf(second.url).get('kept')).toBe('yes');
  });

  it('is found by other processes while it runs, and not after', async () => {
    const dir = await temporaryFolder();
    expect(await findEmbedded(dir)).toBeUndefined();
    const embedded = await startEmbedded({ dir });
    const { stop, announce, ...access } = embedded;
    expect(await findEmbedded(dir)).toEqual(access);
    await announce(4000);
    expect(await findEmbedded(dir)).toEqual({ ...access, port: 4000 });
    await stop();
    expect(await findEmbedded(dir)).toBeUndefined();
    const next = await startEmbedded({ dir });
    onTestFinished(() => next.stop());
    expect((await findEmbedded(dir))?.port).toBeUndefined();
  });

  it('refuses a folder that another relay serves, and does it no harm', async () => {
    const dir = await temporaryFolder();
    const holder = await launch('start', dir);
    onTestFinished(() => holder.kill());
    await expect(startEmbedded({ dir })).rejects.toThrow(/^[^\n]* is in use by process \d+: [^\n]*$/);
    expect(await clientOf(holder.said.url).ping()).toBe('PONG');
  });

  it('ends Redis within 2 s of a kill -9, and has every acknowledged write at the next start', async () => {
    const dir = await temporaryFolder();
    const relay = await launch('start', dir);
    const client = clientOf(relay.said.url);
    const pid = await pidOf(client);
    let acked = 0;
    const write = (): unknown =>
      client.incr('count').then(
        (count) => {
          acked = count;
          return write();
        },
        () => {},
      );
    write();
    await until(5000, () => acked > 500);
    const killedAt = Date.now();
    await relay.kill();
    await until(2000, async () => !(await isAlive(pid)));
    expect(Date.now() - killedAt).toBeLessThan(2000);
    client.disconnect();

    const next = await startEmbedded({ dir });
    onTestFinished(() => next.stop());
    expect(Number(await clientOf(next.url).get('count'))).toBeGreaterThanOrEqual(acked);
  });
});
