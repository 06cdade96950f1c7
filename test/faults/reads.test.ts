import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { setTimeout as pass } from 'node:timers/promises';
import type { Redis } from 'ioredis';
import { describe, expect, it } from 'vitest';
import { BLOCK_MS } from '../../src/log/reader.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { growth } from '../log/growth.js';
import { adminOf, KEYS, Ledger, startPod, type TestPod } from '../log/rig.js';
import { PATIENT_MS, PlainGroupReader, readUnder, unawares } from './reads.js';

const setId = (admin: Redis, group: string, id: string) =>
  admin.xgroup('SETID', KEYS.stream, group, id).catch(() => {}); // it may have been destroyed just now

/** Resolves when the control was given again what it had. */
async function repeats(control: PlainGroupReader): Promise<void> {
  const before = control.account([]).repeated;
  await eventually(() => control.account([]).repeated > before + 10, {
    withinMs: PATIENT_MS,
    what: 'it to come again',
  });
}

/** A connection that asks for the group's next entry and never reads the answer: its peer has gone, and Redis doesn't know. */
async function zombie(port: number, group: string): Promise<Socket> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => {});
  await once(socket, 'connect');
  socket.pause();
  const words = ['XREADGROUP', 'GROUP', group, 'x', 'COUNT', '1', 'BLOCK', '0', 'NOACK', 'STREAMS', KEYS.stream, '>'];
  socket.write(`*${words.length}\r\n${words.map((word) => `$${word.length}\r\n${word}\r\n`).join('')}`);
  return socket;
}

/** All of the zombies have asked, and Redis has an answer for none of them yet, or has sent it to all. */
async function zombiesAre(state: 'waiting' | 'served', admin: Redis, zombies: readonly Socket[]): Promise<void> {
  const isSo = async (): Promise<boolean> => {
    const clients = ((await admin.client('LIST')) as string).split('\n');
    return zombies.every(({ localPort }) => {
      const seen = clients.find((line) => line.includes(` addr=127.0.0.1:${localPort} `)) ?? '';
      return seen.includes(' cmd=xreadgroup ') && / flags=\w*b/.test(seen) === (state === 'waiting');
    });
  };
  await eventually(isSo, { withinMs: PATIENT_MS, what: `all zombies to be ${state}` });
}

describe.concurrent('a reader of the log is given every entry once, in order', { timeout: 4 * PATIENT_MS }, () => {
  it('control: without a fault a plain group reader is, too', async () => {
    expect(await readUnder(() => pass(500))).toEqual({ lost: 0, repeated: 0 });
  });

  it('when replies are lost and the connection is cut, 15 times', async () => {
    const control = await readUnder(async ({ proxy, admin, control, reader }) => {
      for (let lost = 0; lost < 15; ) {
        proxy.dropReplies(true);
        if (await control.misses(admin)) lost++;
        proxy.dropReplies(false);
        proxy.rst();
        const had = reader.ids.length;
        await control.readsOn();
        await eventually(() => reader.ids.length > had, { withinMs: PATIENT_MS, what: 'the reader to read on' });
      }
    });
    expect(control.lost).toBeGreaterThanOrEqual(15);
  });

  it('when its connection stays open and never answers again', async () => {
    await readUnder(async ({ proxy, reader, control, ledger }) => {
      proxy.dropReplies(true);
      await pass(3000);
      proxy.dropReplies(false);
      // TCP loses nothing in the middle of a connection: one that lost replies is never used again here
      await eventually(() => ledger.missing(reader).length < 5, {
        withinMs: PATIENT_MS,
        what: 'the reader to have replaced it',
      });
      // the control waits for ever for the answer that was lost
      await eventually(() => control.account(ledger.accepted.keys()).lost > 50, { withinMs: PATIENT_MS });
      expect(ledger.missing(reader).length).toBeLessThan(50);
      proxy.rst();
    });
  });

  it('when eight zombie connections take entries from its group', async () => {
    const control = await readUnder(async ({ redis, admin, groups }) => {
      const zombies: Socket[] = [];
      for (const group of groups) for (let n = 0; n < 8; n++) zombies.push(await zombie(redis.port, group));
      await zombiesAre('served', admin, zombies);
      for (const socket of zombies) socket.destroy();
    });
    expect(control.lost).toBeGreaterThanOrEqual(8);
  });

  it('when a zombie takes the last one, and nothing comes behind it', async () => {
    await using redis = await startRedis({ aof: 'off' });
    await using admin = adminOf(redis.url);
    await using reader = await startPod('reader', { url: redis.url });
    await using control = new PlainGroupReader(redis.url, 'pod:control');
    await reader.append('first');
    await eventually(() => reader.ids.length === 1, { withinMs: PATIENT_MS });
    await control.settle();
    const zombies = await Promise.all(['pod:reader', 'pod:control'].map((group) => zombie(redis.port, group)));
    await zombiesAre('waiting', admin, zombies);
    // Redis gives to who asked first: once the read that was under way has ended, both readers stand behind
    await pass(BLOCK_MS + 100);
    await control.settle();
    await reader.append('last');
    await eventually(() => expect(reader.ids).toEqual(['first', 'last']), { withinMs: PATIENT_MS });
    await control.settle();
    expect(control.account(['last'])).toEqual({ lost: 1, repeated: 0 });
    expect(reader.gaps).toEqual([]);
    for (const socket of zombies) socket.destroy();
  });

  it('when its group is destroyed 50 times', async () => {
    const control = await readUnder(async (on) => {
      const { admin, groups } = on;
      const destroy = async (): Promise<void> => {
        for (const group of groups) await admin.xgroup('DESTROY', KEYS.stream, group);
      };
      for (let round = 0; round < 45; round++) {
        await destroy();
        await pass(20);
      }
      for (let round = 0; round < 5; round++) await unawares(on, () => destroy().then(() => growth(admin)));
    });
    expect(control.lost).toBeGreaterThanOrEqual(5);
  });

  it('when its group is made again at $', async () => {
    const control = await readUnder(async (on) => {
      const { admin, groups } = on;
      for (let round = 0; round < 5; round++)
        await unawares(on, async () => {
          for (const group of groups) await admin.xgroup('DESTROY', KEYS.stream, group);
          await growth(admin);
          for (const group of groups) await admin.xgroup('CREATE', KEYS.stream, group, '$');
        });
    });
    expect(control.lost).toBeGreaterThanOrEqual(5);
  });

  it('when its group is made again at 0', async () => {
    const control = await readUnder(async ({ admin, groups, control }) => {
      for (let round = 0; round < 5; round++) {
        for (const group of groups)
          await admin.multi().xgroup('DESTROY', KEYS.stream, group).xgroup('CREATE', KEYS.stream, group, '0').exec();
        await repeats(control);
      }
    });
    expect(control.repeated).toBeGreaterThan(50);
  });

  it('when somebody moves its group ahead', async () => {
    const control = await readUnder(async ({ admin, groups }) => {
      for (const id of ['$', '9999999999999-0', '$', '9999999999999-0']) {
        for (const group of groups) await setId(admin, group, id);
        await growth(admin, 20);
      }
    });
    expect(control.lost).toBeGreaterThan(20);
  });

  it('when somebody moves its group back', async () => {
    const control = await readUnder(async ({ admin, groups, control }) => {
      for (let round = 0; round < 5; round++) {
        for (const group of groups) await setId(admin, group, '0');
        await repeats(control);
      }
    });
    expect(control.repeated).toBeGreaterThan(50);
  });

  it('when somebody moves its group about at random for 3 s', async () => {
    const control = await readUnder(async ({ admin, groups, control }) => {
      const until = performance.now() + 3000;
      while (performance.now() < until) {
        const recently = `${Date.now() - Math.floor(Math.random() * 2000)}-5`;
        const id = ['$', '0', '9999999999999-0', recently][Math.floor(Math.random() * 4)] as string;
        for (const group of groups) await setId(admin, group, id);
        await pass(20);
      }
      for (const group of groups) await setId(admin, group, '0');
      await repeats(control);
    });
    expect(control.repeated).toBeGreaterThan(0);
  });

  it('when a thief reads in its group', async () => {
    const control = await readUnder(async ({ admin, groups, redis }) => {
      await using second = adminOf(redis.url);
      const steal = async (on: Redis, group: string): Promise<number> => {
        const args = ['GROUP', group, 'thief', 'COUNT', 5, 'BLOCK', 100, 'NOACK', 'STREAMS', KEYS.stream, '>'];
        const found = (await on.call('XREADGROUP', ...args)) as [string, unknown[]][] | null;
        return found?.[0]?.[1].length ?? 0;
      };
      const until = performance.now() + PATIENT_MS;
      const thieves = [admin, second].map(async (on, index) => {
        for (let stolen = 0; stolen < 20; ) {
          stolen += await steal(on, groups[index] ?? '');
          expect(performance.now(), `${stolen} stolen from ${groups[index]}`).toBeLessThan(until);
        }
      });
      await Promise.all(thieves);
    });
    expect(control.lost).toBeGreaterThanOrEqual(20);
  });

  it('while it may not write', async () => {
    await readUnder(async ({ admin, reader, control, ledger }) => {
      await admin.acl('SETUSER', 'limited', '-@write');
      await pass(1500);
      const accepted = [...ledger.accepted.keys()];
      await eventually(() => accepted.every((id) => reader.ids.includes(id)), {
        withinMs: PATIENT_MS,
        what: 'reading to go on',
      });
      // the control hears NOPERM and stands still
      await eventually(() => control.account(ledger.accepted.keys()).lost > 20, { withinMs: PATIENT_MS });
      await admin.acl('SETUSER', 'limited', '+@all');
    }, 'limited:any@');
  });
});

describe.concurrent('a reader of the log', { timeout: 4 * PATIENT_MS }, () => {
  it('goes on while its Redis is a read-only replica, and in its group when that is a master again', async () => {
    const options = { aof: 'off', config: { 'repl-diskless-sync-delay': '0' } } as const;
    await using own = await startRedis(options);
    await using other = await startRedis(options);
    await using ownAdmin = adminOf(own.url);
    await using otherAdmin = adminOf(other.url);
    const follows = (admin: Redis) =>
      eventually(async () => (await admin.info('replication')).includes('master_link_status:up'), {
        withinMs: PATIENT_MS,
      });
    await using reader = await startPod('reader', { url: own.url });
    await using control = new PlainGroupReader(own.url, 'pod:control');
    await control.settle();
    await reader.append('before');
    await eventually(() => reader.ids.length === 1 && control.ids.length === 1, { withinMs: PATIENT_MS });
    await otherAdmin.replicaof('127.0.0.1', String(own.port));
    await follows(otherAdmin);
    await otherAdmin.replicaof('NO', 'ONE');
    await ownAdmin.replicaof('127.0.0.1', String(other.port));
    await follows(ownAdmin);
    const ledger = new Ledger(otherAdmin);
    {
      await using writer = await startPod('writer', { url: other.url });
      await ledger.during([writer], () => Promise.all([pass(1500), growth(otherAdmin, 20)]));
    }
    await ledger.settle(reader);
    expect(control.account(ledger.accepted.keys()).lost).toBe(ledger.accepted.size);
    await ownAdmin.replicaof('NO', 'ONE');
    const byGroup = reader.counts.of('log_reads_total{group}');
    await eventually(
      async () => {
        await reader.append(`again-${performance.now()}`);
        return reader.counts.of('log_reads_total{group}') > byGroup;
      },
      { withinMs: PATIENT_MS, what: 'reads by the group' },
    );
    expect([reader.gaps, reader.turns]).toEqual([[], []]);
    expect(new Set(reader.ids).size).toBe(reader.ids.length);
  });

  it('that a second process of its name takes over from leaves no hole between the two', async () => {
    await using redis = await startRedis({ aof: 'off' });
    await using admin = adminOf(redis.url);
    await using writer = await startPod('writer', { url: redis.url });
    await using first = await startPod('reader', { url: redis.url });
    await using control = new PlainGroupReader(redis.url, 'pod:control');
    await control.settle();
    const ledger = new Ledger(admin);
    await using secondControl = new PlainGroupReader(redis.url, 'pod:control', 'second');
    await secondControl.settle();
    const pods: TestPod[] = [];
    await ledger.during([writer], async () => {
      await eventually(() => first.ids.length > 20, { withinMs: PATIENT_MS });
      pods.push(await startPod('reader', { url: redis.url }));
      await eventually(() => first.isFenced, { withinMs: PATIENT_MS, what: 'the first one to be fenced' });
      await eventually(() => control.ids.length > 20 && secondControl.ids.length > 20, { withinMs: PATIENT_MS });
      await growth(admin, 50);
    });
    await using second = pods[0] as TestPod;
    await ledger.settle(writer);
    const all = writer.ids;
    const from = all.indexOf(second.ids[0] ?? '');
    expect(from).toBeGreaterThanOrEqual(0);
    await eventually(() => expect(second.ids).toEqual(all.slice(from)), { withinMs: PATIENT_MS });
    expect(first.ids).toEqual(all.slice(0, first.ids.length));
    expect(first.ids.length).toBeGreaterThanOrEqual(from);
    expect(first.ids.length).toBeLessThan(all.length);
    expect([first.gaps, second.gaps, second.isFenced]).toEqual([[], [], false]);
    // two that share a group without a fence have a part each
    await control.settle();
    expect(control.account(all).lost).toBeGreaterThan(20);
    expect(secondControl.account(all).lost).toBeGreaterThan(20);
  });
});
