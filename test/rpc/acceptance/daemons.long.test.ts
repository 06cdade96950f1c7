import { expect, it } from 'vitest';
import { recordEvidence } from '../../harness/evidence.js';
import { printFaults } from '../../harness/rpc-ledger.js';
import { RpcRig } from '../../harness/rpc-rig.js';
import { daemonPauses, daemonRestarts, massStorm, reconnectStorm } from './daemons.js';

const ROUNDS = Number(process.env.LONG_ROUNDS ?? 20);

it('20 of 20: a daemon’s process that is killed in the middle of a call runs it no oftener than it vouched for', async () => {
  await using rig = await RpcRig.start({ isAlone: true });
  const rounds = [];
  for (let round = 0; round < ROUNDS; round++)
    rounds.push({
      instance: await daemonRestarts(rig, 'instance'),
      raw: await daemonRestarts(rig, 'raw'),
      durable: await daemonRestarts(rig, 'durable'),
      idempotent: await daemonRestarts(rig, 'raw', true),
    });
  const faults = printFaults(await rig.book.check());
  await recordEvidence('rpc-daemon-restarts', { rounds, faults });
  const lost = { outcome: 'worker_lost', mayHaveRun: true, runs: 1 };
  for (const round of rounds) {
    expect(round).toMatchObject({
      instance: lost,
      raw: lost,
      durable: { outcome: 'ok' },
      idempotent: { outcome: 'ok' },
    });
    for (const { afterReturnMs } of [round.instance, round.raw]) expect(afterReturnMs).toBeLessThan(1000);
  }
  expect(faults).toBe('');
});

it('a daemon that reconnects 5 times under 5 callers fails no call, ten times over', async () => {
  await using rig = await RpcRig.start({ isAlone: true });
  const rounds = [];
  for (let round = 0; round < ROUNDS / 2; round++)
    rounds.push(await reconnectStorm(rig, { reconnects: 5, callers: 5, everyMs: 200 }));
  const faults = printFaults(await rig.book.check());
  await recordEvidence('rpc-reconnect-storm', { rounds, faults });
  for (const { outcomes, calls } of rounds) expect(outcomes).toEqual({ ok: calls });
  expect(faults).toBe('');
});

it('1,000 daemons with 10 methods each lose no call to the SIGKILL of a pod', async () => {
  await using rig = await RpcRig.start({ isAlone: true });
  const options = { daemons: 1000, processes: 4, methods: 10, calls: 2500, perSecond: 80 };
  const storm = await massStorm(rig, options);
  const ledger = await rig.book.check();
  await recordEvidence('rpc-mass-storm', { options, storm, ledger });
  expect(storm.outcomes).toEqual({ ok: storm.calls });
  expect([ledger.executions, printFaults(ledger)]).toEqual([storm.calls, '']);
});

it('a daemon whose process was paused for 10 s or 70 s is callable within 2 s of its return', async () => {
  await using rig = await RpcRig.start({ isAlone: true });
  const [short, long] = await Promise.all([daemonPauses(rig, 10_000), daemonPauses(rig, 70_000)]);
  const faults = printFaults(await rig.book.check());
  await recordEvidence('rpc-daemon-pauses', { short, long, faults });
  expect(short.callableMs).toBeLessThan(2000);
  expect(long.callableMs).toBeLessThan(2000);
  expect(faults).toBe('');
});
