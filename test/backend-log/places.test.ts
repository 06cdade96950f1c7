import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { GroupAdmin, LogAccess } from '../../src/log/index.js';
import { parsePosition } from '../../src/wire/position.js';
import { eventually } from '../harness/poll.js';
import { GroupRig, KEYS } from './rig.js';
import { put, range, Witness } from './witness.js';

let rig: GroupRig;
let access: LogAccess;
let groups: GroupAdmin;
beforeAll(async () => {
  rig = await GroupRig.start();
  access = new LogAccess(rig.redis.url, KEYS, { maxEntries: 100_000, maxBytes: 2 ** 26, idWindowMs: 120_000 });
  await access.whenUp(5000);
  groups = new GroupAdmin(access);
});
afterAll(async () => {
  await access?.[Symbol.asyncDispose]();
  await rig?.[Symbol.asyncDispose]();
});

async function whenItHas(witness: Witness, numbers: readonly number[]): Promise<void> {
  await eventually(() => expect([...witness.numbers].sort((a, b) => a - b)).toEqual(numbers), { withinMs: 10_000 });
}

describe('a group that is made', () => {
  test('at a time begins with the first entry of that time', async () => {
    const log = rig.log(rig.topic());
    const before = await put(log, range(0, 5));
    const lastMs = Math.max(...before.map(({ position }) => parsePosition(position)?.ms ?? 0));
    await eventually(() => Date.now() > lastMs + 1);
    await put(log, range(5, 10));
    await using witness = await Witness.start(log, 'g', { from: new Date(lastMs + 1) });
    await whenItHas(witness, range(5, 10));
    expect(witness.gaps).toEqual([]);
  });

  test('at a position begins behind it', async () => {
    const log = rig.log(rig.topic());
    const all = await put(log, range(0, 10));
    const { position } = all.find(({ offset }) => offset === 4) as { position: string };
    await using witness = await Witness.start(log, 'g', { from: { position } });
    await eventually(() =>
      expect(witness.seen.map(({ offset }) => offset).sort((a, b) => a - b)).toEqual(range(5, 11)),
    );
    expect(witness.gaps).toEqual([]);
  });

  test('at a position that was trimmed is told of what is missing', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    const all = await put(log, range(0, 20));
    await rig.admin.xtrim(KEYS.partition(topic, 0).stream, 'MAXLEN', 5);
    const { position } = all.find(({ offset }) => offset === 4) as { position: string };
    await using witness = await Witness.start(log, 'g', { from: { position } });
    await eventually(() =>
      expect(witness.seen.map(({ offset }) => offset).sort((a, b) => a - b)).toEqual(range(16, 21)),
    );
    await eventually(() => expect(witness.gaps).toEqual([{ reason: 'trimmed', partition: 0, from: 5, to: 15 }]));
  });

  test('at the newest has nothing of what was there before', async () => {
    const log = rig.log(rig.topic());
    await put(log, range(0, 5));
    await using witness = await Witness.start(log, 'g', { from: 'latest' });
    await put(log, range(5, 8));
    await whenItHas(witness, range(5, 8));
  });
});

describe('a reset of a group', () => {
  test.each([
    ['shared', undefined],
    ['ordered', 'tenant' as const],
  ])('is refused while it has members, who go on (%s)', async (_mode, orderedBy) => {
    const topic = rig.topic();
    const log = rig.log(topic);
    await using witness = await Witness.start(log, 'g', { orderedBy });
    await put(log, range(0, 5));
    await whenItHas(witness, range(0, 5));
    const refusal = await groups.reset(topic, 'g', { to: 'earliest' }).catch((error: unknown) => error);
    expect(refusal).toMatchObject({ code: 'conflict', message: expect.stringContaining(witness.reader.id) });
    await put(log, range(5, 8));
    await whenItHas(witness, range(0, 8));
  });

  test.each([
    ['shared', undefined],
    ['ordered', 'tenant' as const],
  ])(
    'to the beginning has it handle all again, to the end nothing of what it had not handled (%s)',
    async (_mode, orderedBy) => {
      const topic = rig.topic();
      const log = rig.log(topic);
      {
        await using witness = await Witness.start(log, 'g', { orderedBy });
        await put(log, range(0, 10));
        await whenItHas(witness, range(0, 10));
      }
      await groups.reset(topic, 'g', { to: 'earliest' });
      {
        await using witness = await Witness.start(log, 'g', { orderedBy });
        await whenItHas(witness, range(0, 10));
      }
      await put(log, range(10, 20));
      await groups.reset(topic, 'g', { to: 'latest' });
      await using witness = await Witness.start(log, 'g', { orderedBy });
      await put(log, range(20, 25));
      await whenItHas(witness, range(20, 25));
      expect(witness.gaps).toEqual([]);
      await eventually(async () => (await rig.pending(topic, 'g')) === 0);
    },
  );

  test('keeps out who would join meanwhile, and lets them in after it', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    await put(log, range(0, 3));
    await groups.reset(topic, 'g', { to: 'earliest' });
    const { lock } = KEYS.groupMembers(topic, 'g');
    await rig.admin.set(lock, 'somebody', 'PX', 30_000);
    const joining = Witness.start(log, 'g');
    let hasJoined = false;
    void joining.then(() => {
      hasJoined = true;
    });
    // it has asked, and will ask again
    await eventually(async () => String(await rig.admin.client('LIST')).includes('holdfast%3Ag%3Acommands'));
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect(hasJoined).toBe(false);
    await rig.admin.del(lock);
    await using witness = await joining;
    await whenItHas(witness, range(0, 3));
  });
});
