import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Log } from '../../src/backend-log/index.js';
import { eventually } from '../harness/poll.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { MemberProcess, type Note, readNotes } from './member-process.js';
import { GroupRig, KEYS } from './rig.js';
import { put, range, unexplained, Witness } from './witness.js';

let rig: GroupRig;
beforeAll(async () => {
  rig = await GroupRig.start({});
});
afterAll(async () => {
  await rig?.[Symbol.asyncDispose]();
});

const SLOW = { withinMs: 20_000 } as const;

async function whenSeen(witnesses: readonly Witness[], numbers: readonly number[]): Promise<void> {
  await eventually(() => {
    const seen = new Set(witnesses.flatMap((witness) => witness.numbers));
    const missing = numbers.filter((n) => !seen.has(n));
    if (missing.length > 0) throw new Error(`not handled: ${missing.slice(0, 10).join(', ')} (${missing.length})`);
  }, SLOW);
}

async function whenNothingIsPending(topic: string, group: string): Promise<void> {
  await eventually(async () => (await rig.pending(topic, group)) === 0, { ...SLOW, what: 'nothing to be pending' });
}

/** Who has an entry in hand, and at which delivery. */
async function holders(topic: string, group: string): Promise<readonly (readonly [string, number])[]> {
  const rows = await rig.admin.xpending(KEYS.partition(topic, 0).stream, `app:${group}`, '-', '+', 100);
  return (rows as [string, string, number, number][]).map(([, holder, , deliveries]) => [holder, deliveries] as const);
}

/** Entries one after another until it is stopped; what could not be appended is not counted. */
class Trickle {
  readonly numbers: number[] = [];
  #isOver = false;
  readonly #running: Promise<void>;

  constructor(log: Log, from: number, everyMs = 5) {
    this.#running = (async () => {
      for (let n = from; !this.#isOver; n++) {
        await put(log, [n]).then(
          () => this.numbers.push(n),
          () => {},
        );
        await new Promise((resolve) => setTimeout(resolve, everyMs));
      }
    })();
  }

  async stop(): Promise<readonly number[]> {
    this.#isOver = true;
    await this.#running;
    return this.numbers;
  }
}

/** A member in a process of its own, and what it has written. */
class Outsider implements AsyncDisposable {
  readonly process: MemberProcess;

  private constructor(
    private readonly folder: string,
    readonly ledger: string,
    topic: string,
  ) {
    const settings = { url: rig.redis.url, topic, group: 'g', ordered: false, ledger, handlerMs: 0, failPercent: 0 };
    const limits = { leaseMs: 1000, concurrency: 8, maxDeliveries: 5, backoffMs: 20, maxBackoffMs: 200 };
    this.process = new MemberProcess({ ...settings, ...limits, name: 'outsider' });
  }

  static async start(topic: string): Promise<Outsider> {
    const folder = await mkdtemp(join(tmpdir(), 'holdfast-member-'));
    const ledger = join(folder, 'ledger');
    await writeFile(ledger, '');
    const outsider = new Outsider(folder, ledger, topic);
    await outsider.noted('ready');
    return outsider;
  }

  async noted(what: Note['what'], offset?: number): Promise<void> {
    const is = (note: Note): boolean => note.what === what && (!('offset' in note) || note.offset === offset);
    await eventually(() => readNotes(this.ledger).some(is), { ...SLOW, what: `${what} of ${offset ?? 'it'}` });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.process[Symbol.asyncDispose]();
    await rm(this.folder, { recursive: true, force: true });
  }
}

test('a member that was paused past its lease acknowledges nothing that another has by then', async () => {
  const topic = rig.topic();
  const log = rig.log(topic);
  await using outsider = await Outsider.start(topic);
  await log.append({ event: 'e', data: { n: 1, key: 'k', ms: 1500 } });
  await outsider.noted('begin', 1);
  outsider.process.signal('SIGSTOP');
  let letGo = (): void => {};
  const held = new Promise<void>((resolve) => {
    letGo = resolve;
  });
  await using other = await Witness.start(log, 'g', { handler: () => held, concurrency: 1 });
  await whenSeen([other], [1]);
  expect(other.seen).toMatchObject([{ n: 1, deliveries: 2 }]);
  other.reader.pause();
  outsider.process.signal('SIGCONT');
  await outsider.noted('end', 1);
  // its acknowledgements go one after another: when that of the next one is there, the first one's was
  await log.append({ event: 'e', data: { n: 2, key: 'k', ms: 0 } });
  await outsider.noted('end', 2);
  await eventually(async () => (await holders(topic, 'g')).length === 1, SLOW);
  expect(await holders(topic, 'g')).toEqual([[other.reader.id, 2]]);
  letGo();
  await whenNothingIsPending(topic, 'g');
  expect(other.numbers).toEqual([1]);
});

test('a member that has its hands full takes over what a dead one had, before all that came after it', async () => {
  const topic = rig.topic();
  const log = rig.log(topic);
  await using outsider = await Outsider.start(topic);
  for (const n of range(0, 4)) await log.append({ event: 'e', data: { n, key: 'k', ms: 60_000 } });
  await outsider.noted('begin', 4);
  outsider.process.signal('SIGKILL');
  await outsider.process.ended();
  await put(log, range(4, 1504));
  await using busy = await Witness.start(log, 'g', {
    concurrency: 2,
    handler: () => new Promise((resolve) => setTimeout(resolve, 20)),
  });
  await whenSeen([busy], range(0, 4));
  // some two seconds' worth of a hundred each, of fifteen
  expect(busy.seen.length).toBeLessThan(800);
});

describe('when a group', () => {
  test('is deleted under its members, they are told, and handle all that comes', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    await using one = await Witness.start(log, 'g');
    await using two = await Witness.start(log, 'g');
    const trickle = new Trickle(log, 0);
    await eventually(() => one.seen.length + two.seen.length > 50, SLOW);
    await rig.admin.xgroup('DESTROY', KEYS.partition(topic, 0).stream, 'app:g');
    await eventually(() => one.gaps.length + two.gaps.length > 0, SLOW);
    expect([...one.gaps, ...two.gaps]).toEqual([{ reason: 'group', partition: 0 }]);
    const since = one.seen.length + two.seen.length;
    await eventually(() => one.seen.length + two.seen.length > since + 50, SLOW);
    await whenSeen([one, two], await trickle.stop());
    await whenNothingIsPending(topic, 'g');
  });
});

describe('when the stream', () => {
  test('is trimmed under a group, it is told of what it was not handed, and handed the rest', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    await using witness = await Witness.start(log, 'g');
    await whenSeen(
      [witness],
      (await put(log, range(0, 10))).map(({ n }) => n),
    );
    witness.reader.pause();
    await whenNothingIsPending(topic, 'g');
    // one read may still be on its way, and what it brings is given back
    const all = await put(log, range(10, 110));
    await rig.admin.xtrim(KEYS.partition(topic, 0).stream, 'MAXLEN', 10);
    witness.reader.resume();
    await whenSeen([witness], range(100, 110));
    await eventually(() => expect(unexplained(all, [witness])).toEqual([]), SLOW);
    expect(witness.gaps.every(({ reason }) => reason === 'trimmed')).toBe(true);
    expect(new Set(witness.numbers).size).toBe(witness.numbers.length);
    await whenNothingIsPending(topic, 'g');
  });

  test('is trimmed while a member is away for longer than its lease, it is told of what nobody was handed', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    await using witness = await Witness.start(log, 'g');
    await whenSeen(
      [witness],
      (await put(log, range(0, 10))).map(({ n }) => n),
    );
    witness.reader.pause();
    await whenNothingIsPending(topic, 'g');
    const all = await put(log, range(10, 1110));
    await rig.admin.xtrim(KEYS.partition(topic, 0).stream, 'MAXLEN', 10);
    const until = performance.now() + 1500;
    while (performance.now() < until);
    witness.reader.resume();
    await whenSeen([witness], range(1100, 1110));
    await eventually(() => expect(unexplained(all, [witness])).toEqual([]), SLOW);
    await whenNothingIsPending(topic, 'g');
  });

  test('is trimmed of what others were handed, a member that reads rarely is told of no gap', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    let letGo = (): void => {};
    const held = new Promise<void>((resolve) => {
      letGo = resolve;
    });
    await using busy = await Witness.start(log, 'g', { concurrency: 1, handler: () => held });
    await put(log, [0]);
    await whenSeen([busy], [0]);
    busy.reader.pause();
    await using other = await Witness.start(log, 'g');
    await put(log, range(1, 500));
    await whenSeen([other], range(1, 500));
    const { state } = KEYS.group(topic, 0, 'g');
    await eventually(async () => expect(await rig.admin.hget(state, 'last')).toBe('500'));
    // it has looked since
    const beats = async (): Promise<string> =>
      String(await rig.admin.zscore(KEYS.groupMembers(topic, 'g').members, busy.reader.id));
    const before = await beats();
    await eventually(async () => Number(await beats()) > Number(before) + 500);
    await rig.admin.xtrim(KEYS.partition(topic, 0).stream, 'MAXLEN', 0);
    letGo();
    busy.reader.resume();
    other.reader.pause();
    await put(log, [500]);
    await whenSeen([busy], [500]);
    await put(log, [501]);
    await whenSeen([busy], [501]);
    const again = await beats();
    await eventually(async () => Number(await beats()) > Number(again) + 500);
    expect([...busy.gaps, ...other.gaps]).toEqual([]);
  });

  test('loses an entry that is in hand, its failure is told as a gap, and the others go on', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    let letGo = (): void => {};
    const held = new Promise<void>((resolve) => {
      letGo = resolve;
    });
    await using witness = await Witness.start(log, 'g', {
      handler: async (entry) => {
        if (entry.offset !== 1 || entry.deliveries > 1) return;
        await held;
        throw new Error('for once');
      },
    });
    await put(log, range(0, 5));
    await whenSeen([witness], range(0, 5));
    await rig.admin.xtrim(KEYS.partition(topic, 0).stream, 'MAXLEN', 2);
    letGo();
    await eventually(() => expect(witness.gaps).toEqual([{ reason: 'trimmed', partition: 0, from: 1, to: 1 }]), SLOW);
    await put(log, [5]);
    await whenSeen([witness], [5]);
    await whenNothingIsPending(topic, 'g');
    expect(witness.numbers).toEqual(range(0, 6));
  });

  test('has reached its bound, a group that is behind is told of what it was not handed', async () => {
    const topic = rig.topic();
    const log = rig.log(topic, { maxEntries: 1000 });
    await using witness = await Witness.start(log, 'g');
    witness.reader.pause();
    const all = await put(log, range(0, 5000));
    witness.reader.resume();
    await whenSeen([witness], range(4000, 5000));
    await eventually(() => expect(unexplained(all, [witness])).toEqual([]), SLOW);
    expect(witness.gaps.length).toBeGreaterThan(0);
    await whenNothingIsPending(topic, 'g');
  });

  test('is deleted, its members are told of a new epoch, and handle what comes in it', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    await using witness = await Witness.start(log, 'g');
    await put(log, range(0, 20));
    await whenSeen([witness], range(0, 20));
    await rig.admin.del(KEYS.partition(topic, 0).stream);
    await put(log, range(20, 40));
    await whenSeen([witness], range(20, 40));
    await eventually(() => expect(witness.gaps).toMatchObject([{ reason: 'epoch', partition: 0 }]), SLOW);
    await whenNothingIsPending(topic, 'g');
  });
});

describe('when Redis', () => {
  test.each([
    ['shared', undefined],
    ['ordered', 'tenant' as const],
  ])('is emptied, the members of a group (%s) are told, and handle what comes', async (_mode, orderedBy) => {
    const topic = rig.topic();
    const log = rig.log(topic);
    await using one = await Witness.start(log, 'g', { orderedBy });
    await using two = await Witness.start(log, 'g', { orderedBy });
    const trickle = new Trickle(log, 0);
    await eventually(() => one.seen.length + two.seen.length > 50, SLOW);
    await trickle.stop();
    await whenNothingIsPending(topic, 'g');
    await rig.admin.flushall();
    const after = new Trickle(log, 10_000);
    await eventually(() => expect([...one.gaps, ...two.gaps]).toMatchObject([{ reason: 'epoch' }]), SLOW);
    await whenSeen([one, two], await after.stop());
    await whenNothingIsPending(topic, 'g');
    expect([...one.gaps, ...two.gaps]).toMatchObject([{ reason: 'epoch' }]);
  });

  test.each([
    ['shared', undefined],
    ['ordered', 'tenant' as const],
  ])('is restarted with its data, nothing is missed and nothing is a gap (%s)', async (_mode, orderedBy) => {
    const topic = rig.topic();
    const log = rig.log(topic);
    await using one = await Witness.start(log, 'g', { orderedBy });
    await using two = await Witness.start(log, 'g', { orderedBy });
    const trickle = new Trickle(log, 0);
    await eventually(() => one.seen.length + two.seen.length > 50, SLOW);
    await rig.redis.restart();
    const since = trickle.numbers.length;
    await eventually(() => trickle.numbers.length > since + 50, SLOW);
    await whenSeen([one, two], await trickle.stop());
    await whenNothingIsPending(topic, 'g');
    expect([...one.gaps, ...two.gaps]).toEqual([]);
  });

  test('is behind a black hole for one member, another takes over, and the first one comes back', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    await using proxy = await startTcpProxy(rig.redis.port);
    const { createLog } = await import('../../src/backend-log/index.js');
    await using far = createLog(`redis://127.0.0.1:${proxy.port}`, { topic });
    await using away = await Witness.start(far, 'g');
    const trickle = new Trickle(log, 0);
    await eventually(() => away.seen.length > 20, SLOW);
    proxy.blackhole(true);
    await using here = await Witness.start(log, 'g');
    await eventually(() => here.seen.length > 100, SLOW);
    await whenSeen([away, here], [...trickle.numbers]);
    const handledByAway = away.seen.length;
    proxy.blackhole(false);
    await eventually(() => away.seen.length > handledByAway + 20, SLOW);
    await whenSeen([away, here], await trickle.stop());
    await whenNothingIsPending(topic, 'g');
    expect([...away.gaps, ...here.gaps]).toEqual([]);
  });
});
