import { setTimeout as pass } from 'node:timers/promises';
import { expect, it } from 'vitest';
import type { LogGap } from '../../src/log/index.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { startTcpProxy, TcpProxy } from '../harness/tcp-proxy.js';
import { growth, newestOffset } from './growth.js';
import { adminOf, Ledger, startPod } from './rig.js';

/** A promotion behind an address that moves, while the connections to the old master stay open. */
async function failOver(losing: number): Promise<{ known: number; pods: readonly (readonly LogGap[])[] }> {
  await using old = await startRedis({ aof: 'off', config: { 'repl-diskless-sync-delay': '0' } });
  await using next = await startRedis({ aof: 'off' });
  await using oldAdmin = adminOf(old.url);
  await using nextAdmin = adminOf(next.url);
  await nextAdmin.replicaof('127.0.0.1', String(old.port));
  await eventually(async () => (await nextAdmin.info('replication')).includes('master_link_status:up'), {
    withinMs: 20_000,
  });
  const toOld = [await startTcpProxy(old.port), await startTcpProxy(old.port)] as const;
  const toNext = toOld.map(({ port }) => new TcpProxy(port, next.port));
  try {
    await using a = await startPod('a', { url: `redis://127.0.0.1:${toOld[0].port}` });
    await using b = await startPod('b', { url: `redis://127.0.0.1:${toOld[1].port}` });
    const ledger = new Ledger(nextAdmin);
    let known = 0;
    let probes = 0;
    let againAfterMs = 0;
    await ledger.during([a, b], async () => {
      // an empty one would have lost all, and of that a gap doesn't name where it began
      await growth(nextAdmin, 20);
      await nextAdmin.replicaof('NO', 'ONE');
      known = await newestOffset(nextAdmin);
      // what the old master accepts meanwhile is lost
      await eventually(() => [a, b].every(({ handled }) => (handled.at(-1)?.offset ?? 0) >= known + losing));
      await oldAdmin.replicaof('127.0.0.1', String(next.port));
      const movedAt = performance.now();
      for (const proxy of toOld) await proxy.refuse(true);
      for (const proxy of toNext) await proxy.listen();
      const worksAgain = async (): Promise<void> => {
        for (const pod of [a, b]) {
          const id = `again-${++probes}`;
          await pod.append(id);
          await eventually(() => pod.ids.includes(id), { withinMs: 1000 });
        }
      };
      await eventually(worksAgain, { withinMs: 15_000, what: 'both pods to append and read again' });
      againAfterMs = performance.now() - movedAt;
      await pass(500);
    });
    for (const pod of [a, b]) await ledger.settle(pod);
    expect(againAfterMs).toBeLessThan(8000);
    return { known, pods: [a.gaps, b.gaps] };
  } finally {
    for (const proxy of [...toOld, ...toNext]) await proxy.stop();
  }
}

it('a promotion behind open connections: appends and delivery go on at the new master', async () => {
  await failOver(0);
});

it('a promotion that lost acknowledged entries: one gap at every pod names them', async () => {
  const { known, pods } = await failOver(40);
  for (const gaps of pods) {
    expect(gaps.map(({ reason, from }) => `${reason} ${from.offset}`)).toEqual([`epoch ${known + 1}`]);
    expect(gaps[0]?.to.offset).toBeGreaterThanOrEqual(known + 40);
  }
});

it('the ledger wants what stands in the log, whatever a gap says, and sees a gap that is false', async () => {
  await using redis = await startRedis({ aof: 'off' });
  await using admin = adminOf(redis.url);
  await using pod = await startPod('a', redis);
  const ledger = new Ledger(admin);
  for (let n = 0; n < 3; n++) await ledger.publish(pod);
  await ledger.settle(pod);
  const withheld = pod.handled.pop();
  if (!withheld) throw new Error('nothing came');
  pod.gaps.push({ partition: 0, reason: 'epoch', from: withheld, to: withheld });
  await expect(ledger.check(pod)).rejects.toMatchObject({
    actual: { missing: [expect.stringContaining(withheld.id)], falseGaps: [expect.stringMatching(/^epoch /)] },
  });
});
