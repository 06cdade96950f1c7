import fc from 'fast-check';
import { describe, expect, test, vi } from 'vitest';
import { type Answer, Answers } from '../../src/client/answers.js';
import { copyOf } from '../../src/client/copy.js';
import { defer } from '../../src/client/deferred.js';
import { Emitter } from '../../src/client/emitter.js';
import { fingerprint } from '../../src/client/fingerprint.js';
import { checkSize } from '../../src/client/measure.js';
import { further, PlaceKeeper, parsePlace } from '../../src/client/place.js';
import { Progress } from '../../src/client/progress.js';
import { Replay } from '../../src/client/replay.js';
import { Seen } from '../../src/client/seen.js';
import { webStore } from '../../src/client/stores.js';
import { Subscription } from '../../src/client/subscription.js';
import { permissionsOf, TokenSource } from '../../src/client/token-source.js';
import { fromWire } from '../../src/client/wire-errors.js';
import { CallError } from '../../src/core/call-error.js';
import { RelayError } from '../../src/core/errors.js';
import { encodePayload } from '../../src/rpc/payload.js';

const at = (offset: number, epoch = 'a', partition = 0): string => `${epoch}:${partition}:1-${offset}`;

describe('progress', () => {
  test('is the newest position below which nothing waits, in whatever order handlers finish', () => {
    const steps = fc.array(fc.record({ handlers: fc.integer({ min: 0, max: 3 }), finishes: fc.nat(9) }), {
      maxLength: 200,
    });
    fc.assert(
      fc.property(steps, (all) => {
        const progress = new Progress(() => {});
        const open: { offset: number; done: () => void }[] = [];
        all.forEach(({ handlers, finishes }, index) => {
          const offset = index + 1;
          if (handlers === 0) progress.pass(at(offset));
          else {
            const done = progress.begin(at(offset), handlers);
            for (let handler = 0; handler < handlers; handler++) open.push({ offset, done });
          }
          if (open.length > 0 && finishes < 7) open.splice(finishes % open.length, 1)[0]?.done();
          const oldest = Math.min(offset + 1, ...open.map((one) => one.offset));
          const said = progress.position === undefined ? 0 : Number(progress.position.split('-')[1]);
          expect(said).toBe(oldest - 1);
        });
      }),
    );
  });

  test('behind a handler that never finishes nothing piles up', () => {
    const progress = new Progress(() => {});
    progress.begin(at(1), 1);
    for (let offset = 2; offset < 100_000; offset++) progress.begin(at(offset), 1)();
    expect(progress.size).toBeLessThan(2100);
    expect(progress.position).toBeUndefined();
  });
});

describe('what came before', () => {
  const known = { print: 1, at: 1, epoch: 'a' };

  test('is the same entry, or the same content of another epoch; never only the same id', () => {
    const seen = new Seen(10);
    expect(seen.isRepeated('room', 'id', known)).toBe(false);
    expect(seen.isRepeated('room', 'id', known)).toBe(true);
    expect(seen.isRepeated('room', 'id', { print: 1, at: 9, epoch: 'b' })).toBe(true);
    expect(seen.isRepeated('other', 'id', known)).toBe(false);
    // two publishers with one id, in one epoch
    expect(seen.isRepeated('room', 'id', { print: 1, at: 9, epoch: 'a' })).toBe(false);
    expect(seen.isRepeated('room', 'id', { print: 2, at: 9, epoch: 'b' })).toBe(false);
  });

  test('is remembered for so many events and no more', () => {
    const seen = new Seen(3);
    for (const id of ['1', '2', '3', '4']) seen.isRepeated('room', id, known);
    expect(['4', '3', '2'].map((id) => seen.isRepeated('room', id, known))).toEqual([true, true, true]);
    expect(seen.isRepeated('room', '1', known)).toBe(false);
  });
});

describe('answers', () => {
  const answerOf = (value: unknown, bytes = 1): Answer => ({ value, bytes });

  test('are given for every delivery, before and after the handler is done, by one run', async () => {
    const answers = new Answers();
    const work = defer<Answer>();
    let runs = 0;
    const deliver = () =>
      answers.answer('id', () => {
        runs++;
        return work.promise;
      });
    const early = [deliver(), deliver()];
    work.resolve(answerOf('done'));
    const all = await Promise.all([...early, deliver()]);
    expect([...all, await deliver()].map(({ value }) => value)).toEqual(['done', 'done', 'done', 'done']);
    expect(runs).toBe(1);
    answers.close(new RelayError('cancelled'));
  });

  test('are kept for a minute after the end, and no timer is left after the last or after closing', async () => {
    vi.useFakeTimers();
    try {
      const answers = new Answers();
      let runs = 0;
      const deliver = (id: string) => answers.answer(id, async () => answerOf(++runs));
      await deliver('old');
      await vi.advanceTimersByTimeAsync(30_000);
      await deliver('new');
      await vi.advanceTimersByTimeAsync(29_000);
      expect((await deliver('old')).value).toBe(1);
      await vi.advanceTimersByTimeAsync(2000);
      expect((await deliver('old')).value).toBe(3);
      expect((await deliver('new')).value).toBe(2);
      await vi.advanceTimersByTimeAsync(120_000);
      expect(answers.keptBytes).toBe(0);
      expect(vi.getTimerCount()).toBe(0);
      const last = deliver('last');
      answers.close(new RelayError('cancelled'));
      await last;
      expect(vi.getTimerCount()).toBe(0);
    } finally {
      vi.useRealTimers();
    }
  });

  test('that are too large to be kept say so, and still nothing runs twice', async () => {
    const answers = new Answers();
    let runs = 0;
    const deliver = (id: number) => answers.answer(`${id}`, async () => answerOf(++runs, 1_000_000));
    for (let id = 1; id <= 100; id++) {
      await deliver(id);
      expect(answers.keptBytes).toBeLessThanOrEqual(16_000_000);
    }
    expect((await deliver(1)).value).toMatchObject({ rpcError: true });
    expect((await deliver(100)).value).toBe(100);
    expect(runs).toBe(100);
    answers.close(new RelayError('cancelled'));
  });

  test('are forgotten from the oldest on, when there are ten thousand', async () => {
    const answers = new Answers();
    let runs = 0;
    const deliver = (id: number) => answers.answer(`${id}`, async () => answerOf(++runs));
    for (let id = 1; id <= 10_001; id++) await deliver(id);
    await deliver(10_001);
    await deliver(2);
    expect(runs).toBe(10_001);
    await deliver(1);
    expect(runs).toBe(10_002);
    answers.close(new RelayError('cancelled'));
  });

  test('of handlers that never end are refused unrun when a thousand are in work; those hear that nobody waits', async () => {
    const answers = new Answers();
    const aborted: unknown[] = [];
    const hang = (id: number) =>
      answers.answer(`${id}`, (signal) => {
        signal.addEventListener('abort', () => aborted.push(signal.reason));
        return new Promise(() => {});
      });
    for (let id = 1; id <= 1000; id++) void hang(id);
    expect((await hang(1001)).value).toMatchObject({ rpcError: true });
    const reason = new RelayError('timeout');
    answers.giveUp('7', reason);
    answers.giveUp('unknown', reason);
    expect(aborted).toEqual([reason]);
    answers.close(new RelayError('cancelled'));
    expect(aborted).toHaveLength(1000);
  });
});

describe('a copy', () => {
  test('is what JSON makes of it, with its binary parts', () => {
    const date = new Date();
    const value = { date, list: [undefined, new Number(7), { toJSON: (key: string) => `at ${key}` }], gone: undefined };
    expect(JSON.stringify(copyOf(value))).toBe(JSON.stringify(value));
    fc.assert(
      fc.property(fc.jsonValue(), (json) => {
        expect(copyOf(json)).toEqual(json);
      }),
    );
    const whole = Buffer.from([1, 2, 3, 4]);
    for (const binary of [
      whole,
      new Uint8Array(whole),
      new Uint8Array(whole).buffer,
      new DataView(new Uint8Array(whole).buffer),
    ])
      expect([...(copyOf([binary]) as [Uint8Array])[0]]).toEqual([1, 2, 3, 4]);
    expect([...(copyOf(whole.subarray(1, 3)) as Uint8Array)]).toEqual([2, 3]);
    const blob = new Blob(['x']);
    expect(copyOf({ blob })).toEqual({ blob });
  });

  test('does not change with what it was made of', () => {
    const value = { list: [{ a: 1 }], bytes: Buffer.from([1]) };
    const copy = copyOf(value);
    Object.assign(value.list[0] as object, { a: 2 });
    value.bytes[0] = 2;
    expect(copy).toEqual({ list: [{ a: 1 }], bytes: new Uint8Array([1]) });
  });
});

describe('a size', () => {
  const limit = { maxPayloadBytes: 1_000_000 };
  test('is that of the JSON, or with binary parts at least that of the base64 that the relay makes of it', () => {
    expect(checkSize('it', 'ab', limit)).toBe(4);
    expect(checkSize('it', 'é€', limit)).toBe(7);
    expect(checkSize('it', undefined, limit)).toBe(4);
    const bytes = new Uint8Array(1000);
    for (const binary of [bytes, Buffer.from(bytes), bytes.buffer, new Blob([bytes])])
      expect(checkSize('it', { at: [binary] }, limit)).toBe(1368);
    for (const value of [bytes, { at: [bytes], more: ['ü', 7, true, null] }, [bytes, bytes, bytes]]) {
      const relays = encodePayload(value, 1_000_000).length;
      expect(checkSize('it', value, limit)).toBeGreaterThanOrEqual(relays);
      expect(checkSize('it', value, limit)).toBeLessThan(relays + 64);
    }
  });

  test('over the limit, or of what JSON cannot hold, is an error that says so', () => {
    const size = (value: unknown) => () => checkSize('it', value, limit);
    expect(size('x'.repeat(999_998))).not.toThrow();
    expect(size('x'.repeat(999_999))).toThrow(expect.objectContaining({ code: 'payload_too_large' }));
    expect(size(new Uint8Array(749_000))).not.toThrow();
    expect(size(new Uint8Array(750_000))).toThrow('it: 1000024 bytes, the limit is 1000000');
    const circle: { self?: unknown } = {};
    circle.self = circle;
    let deep: unknown[] = [];
    for (let level = 0; level < 100_000; level++) deep = [deep];
    for (const value of [circle, 1n, deep])
      expect(size(value)).toThrow(expect.objectContaining({ code: 'bad_request' }));
  });
});

test('a fingerprint tells contents apart, and is the same for the same', () => {
  const json = fc.jsonValue();
  fc.assert(
    fc.property(json, json, (one, other) => {
      expect(fingerprint(one)).toBe(fingerprint(structuredClone(one)));
      const isSame = JSON.stringify(one) === JSON.stringify(other);
      if (!isSame)
        expect([fingerprint(one), JSON.stringify(one)]).not.toEqual([fingerprint(other), JSON.stringify(other)]);
    }),
  );
  const all = [null, '', 'ab', ['ab'], ['a', 'b'], {}, [], 0, '0', false, { a: 1 }, { a: '1' }, { b: 1 }, [null], [[]]];
  const parts = [new Uint8Array(3), new Uint8Array(4), Uint8Array.of(1, 2, 3), new ArrayBuffer(5)];
  expect(new Set([...all, ...parts].map((value) => fingerprint(value))).size).toBe(all.length + parts.length);
});

test('a replay that was cut is recognised as far as it is the same', () => {
  const replay = new Replay();
  const give = (prints: readonly number[]): number[] => {
    replay.rewind();
    return prints.filter((print) => {
      if (replay.isKnown(print)) return false;
      replay.take(print);
      return true;
    });
  };
  expect(give([1, 2, 3])).toEqual([1, 2, 3]);
  expect(give([1, 2])).toEqual([]);
  expect(give([1, 2, 3, 4, 4])).toEqual([4, 4]);
  // after a failover others stand there
  expect(give([1, 2, 7, 4])).toEqual([7, 4]);
  expect(give([1, 2, 7, 4, 5])).toEqual([5]);
  replay.clear();
  expect(give([1])).toEqual([1]);
});

describe('a place', () => {
  const tooMany = `{"v":1,"position":null,"rooms":{${Array.from({ length: 1001 }, (_, n) => `"${n}":null`)}}}`;
  test.each([
    '',
    'null',
    '[]',
    '{"v":2,"position":null,"rooms":{}}',
    '{"v":1,"position":"somewhere","rooms":{}}',
    '{"v":1,"position":null,"rooms":{"a":1}}',
    '{"v":1,"position":null}',
  ])('is none in %s', (text) => {
    expect(parsePlace(text)).toBeUndefined();
  });

  test('has at most 1,000 rooms, and of more the last are written', async () => {
    expect(parsePlace(tooMany)).toBeUndefined();
    let text = '';
    const save = (next: string): void => {
      text = next;
    };
    const rooms = new Map(Array.from({ length: 1003 }, (_, n) => [`room-${n}`, null]));
    const keeper = new PlaceKeeper(
      { load: () => text, save },
      0,
      () => ({ position: at(1), rooms }),
      () => {},
    );
    keeper.open();
    keeper.changed();
    await keeper.flush();
    const kept = [...(parsePlace(text)?.rooms.keys() ?? [])];
    expect([kept.length, kept[0], kept.at(-1)]).toEqual([1000, 'room-3', 'room-1002']);
  });

  test('is read as it was written', async () => {
    let text = '';
    const rooms = new Map([
      ['room', null],
      ['__proto__', at(3)],
    ]);
    const keeper = new PlaceKeeper(
      {
        load: () => text,
        save: (next) => {
          text = next;
        },
      },
      0,
      () => ({ position: at(7), rooms }),
      (error) => expect.unreachable(error.message),
    );
    keeper.open();
    keeper.changed();
    await keeper.flush();
    expect(await keeper.load()).toEqual({ position: at(7), rooms });
  });

  test('is written one at a time, at most once in an interval, and the newest at the end', async () => {
    vi.useFakeTimers();
    try {
      let position = at(1);
      const saved: string[] = [];
      let release = (): void => {};
      const save = (text: string) => {
        saved.push(parsePlace(text)?.position ?? '');
        return new Promise<void>((resolve) => {
          release = resolve;
        });
      };
      const keeper = new PlaceKeeper(
        { load: () => undefined, save },
        100,
        () => ({ position, rooms: new Map() }),
        () => {},
      );
      keeper.open();
      for (let n = 1; n <= 5; n++) {
        position = at(n);
        keeper.changed();
      }
      expect(saved).toEqual([]);
      await vi.advanceTimersByTimeAsync(100);
      expect(saved).toEqual([at(5)]);
      position = at(6);
      keeper.changed();
      const closing = keeper.close();
      position = at(7);
      keeper.changed();
      await vi.advanceTimersByTimeAsync(1000);
      expect(saved).toEqual([at(5)]);
      release();
      await vi.advanceTimersByTimeAsync(0);
      expect(saved).toEqual([at(5), at(7)]);
      release();
      await closing;
      expect(vi.getTimerCount()).toBe(0);
    } finally {
      vi.useRealTimers();
    }
  });

  test('that changes all the time is not written back to back, however long a write takes', async () => {
    vi.useFakeTimers();
    try {
      const savedAt: number[] = [];
      const save = (): Promise<void> => {
        savedAt.push(Date.now() - startedAt);
        return new Promise((resolve) => setTimeout(resolve, 250));
      };
      const place = () => ({ position: undefined, rooms: new Map() });
      const keeper = new PlaceKeeper({ load: () => undefined, save }, 100, place, () => {});
      keeper.open();
      const startedAt = Date.now();
      for (let ms = 0; ms < 1400; ms += 10) {
        keeper.changed();
        await vi.advanceTimersByTimeAsync(10);
      }
      expect(savedAt).toEqual([100, 450, 800, 1150]);
      const closing = keeper.close();
      await vi.advanceTimersByTimeAsync(250);
      await closing;
      expect(savedAt).toEqual([100, 450, 800, 1150, 1400]);
      expect(vi.getTimerCount()).toBe(0);
    } finally {
      vi.useRealTimers();
    }
  });

  test('is not written before the one that is there was read', async () => {
    vi.useFakeTimers();
    try {
      const saved: string[] = [];
      const store = { load: () => undefined, save: (text: string) => void saved.push(text) };
      const place = () => ({ position: at(1), rooms: new Map() });
      const [opened, closed] = [0, 1].map(() => new PlaceKeeper(store, 10, place, () => {})) as [
        PlaceKeeper,
        PlaceKeeper,
      ];
      for (const keeper of [opened, closed]) keeper.changed();
      await vi.advanceTimersByTimeAsync(1000);
      await closed.close();
      expect(saved).toEqual([]);
      opened.open();
      await vi.advanceTimersByTimeAsync(10);
      expect(saved).toHaveLength(1);
    } finally {
      vi.useRealTimers();
    }
  });

  test('a store that throws at once ends a flush too', async () => {
    const told: string[] = [];
    const save = (): void => {
      throw new RelayError('conflict');
    };
    const keeper = new PlaceKeeper(
      { load: () => undefined, save },
      0,
      () => ({ position: undefined, rooms: new Map() }),
      ({ code }) => told.push(code),
    );
    keeper.open();
    for (const _ of [1, 2]) {
      keeper.changed();
      await keeper.flush();
    }
    expect(told).toEqual(['conflict']);
  });

  test('is the further one of two in one epoch, else the newer', () => {
    expect(further(at(3), at(5))).toBe(at(5));
    expect(further(at(5), at(3))).toBe(at(5));
    expect(further(at(3, 'b'), at(5, 'a'))).toBe(at(3, 'b'));
    expect(further(at(3), undefined)).toBe(at(3));
    expect(further(undefined, at(3))).toBe(at(3));
  });
});

test('of two that write to one key of web storage the first keeps it', () => {
  const content = new Map<string, string>();
  const storage = {
    getItem: (key: string) => content.get(key) ?? null,
    setItem: (key: string, value: string) => void content.set(key, value),
  };
  const [first, second] = [webStore('k', storage), webStore('k', storage)];
  expect([first.load(), second.load()]).toEqual([undefined, undefined]);
  first.save('1');
  expect(() => second.save('2')).toThrow(/another tab/);
  first.save('3');
  expect(content.get('k')).toBe('3');
  expect(() => webStore('k')).toThrow('no localStorage');
});

describe('a token source', () => {
  const jwt = (claims: object): string => `e30.${Buffer.from(JSON.stringify(claims)).toString('base64url')}.x`;

  // issued so long ago, by the issuer's clock that is so far ahead, for so long → renewed after, in seconds
  test.each([
    ['an hour, with a minute to spare', 0, 0, 3600, 3540],
    ['a short one, at four fifths', 0, 0, 100, 80],
    ['one that was made before', 1800, 0, 3600, 1740],
    ['one by a clock an hour ahead: its own span', 0, 3600, 3600, 3540],
    ['one by a clock an hour behind: its own span', 0, -7200, 3600, 3540],
  ])('renews %s', async (_, ago, ahead, life, seconds) => {
    const iat = Math.floor(Date.now() / 1000) - ago + ahead;
    const source = new TokenSource(async () => jwt({ iat, exp: iat + life }));
    await source.get();
    expect((source.renewInMs as number) / 1000).toBeGreaterThan(seconds - 3);
    expect((source.renewInMs as number) / 1000).toBeLessThan(seconds + 3);
  });

  test('renews none that never ends, and none that is a text', async () => {
    for (const source of [new TokenSource(() => jwt({ iat: 0 })), new TokenSource(jwt({ exp: 2 ** 40 }))]) {
      await source.get();
      expect(source.renewInMs).toBeUndefined();
    }
  });

  test('keeps the token at hand while it is good, and gives no refused one again', async () => {
    let asked = 0;
    const source = new TokenSource(() => jwt({ n: asked++ > 1 ? 2 : 1 }));
    expect(await source.get()).toBe(await source.get());
    expect(asked).toBe(1);
    const error = new RelayError('unauthorized');
    source.refuse(jwt({ n: 1 }), error);
    await expect(source.get()).rejects.toBe(error);
    expect(source.isRefusal(error)).toBe(true);
    expect(await source.get()).toBe(jwt({ n: 2 }));
    source.refuse(jwt({ n: 3 }), error);
    expect(await source.get()).toBe(jwt({ n: 2 }));
  });

  test('of a function that gives what had expired may be asked again, one that is a text may not', async () => {
    const error = new RelayError('token_expired');
    const [text, given] = [jwt({}), () => jwt({})].map((token) => new TokenSource(token)) as [TokenSource, TokenSource];
    for (const source of [text, given]) source.refuse(jwt({}), error);
    await expect(text.get()).rejects.toBe(error);
    await expect(given.get()).rejects.toMatchObject({ code: 'unavailable', retryable: true, cause: error });
  });

  test.each(['', 'x', 'a.b.c', 'e30.bnVsbA.x', `${'x'.repeat(20)}.!!.`])('reads nothing from %j', (token) => {
    expect(permissionsOf(token)).toBeUndefined();
  });

  test('reads unicode', () => {
    expect(permissionsOf(jwt({ caps: { subscribe: ['😀'] } }))).toBe('{"subscribe":["😀"]}');
  });
});

test('a failure keeps its code, and one that is not known keeps its text and whether to retry', () => {
  expect(
    fromWire({ ok: false, error: 'e', code: 'unavailable', retryable: true, mayHaveHappened: true, retryAfterMs: 5 }),
  ).toMatchObject({
    code: 'unavailable',
    message: 'e',
    mayHaveHappened: true,
    retryAfterMs: 5,
    retryable: true,
  });
  expect(fromWire({ ok: false, error: 'e', code: 'of_tomorrow', retryable: true })).toMatchObject({
    code: 'unavailable',
    message: 'e (of_tomorrow)',
  });
  expect(fromWire({ code: 'toString', retryable: false })).toMatchObject({ code: 'internal' });
  expect(fromWire(undefined)).toMatchObject({ code: 'internal', retryable: false });
  expect(fromWire({ code: 'unavailable' })).not.toBeInstanceOf(CallError);
  for (const mayHaveRun of [true, false]) {
    const failed = fromWire({ ok: false, error: 'gone', code: 'worker_lost', retryable: true, mayHaveRun });
    expect(failed).toBeInstanceOf(CallError);
    expect(failed).toMatchObject({ code: 'worker_lost', message: 'gone', mayHaveRun, mayHaveHappened: mayHaveRun });
  }
});

test('a listener that throws holds up no other, and is reported as uncaught', async () => {
  const emitter = new Emitter<{ e: number }>();
  const seen: number[] = [];
  const uncaught = new Promise((resolve) => {
    const listeners = process.listeners('uncaughtException');
    process.removeAllListeners('uncaughtException');
    process.once('uncaughtException', (error) => {
      for (const listener of listeners) process.on('uncaughtException', listener);
      resolve(error);
    });
  });
  const failing = emitter.on('e', () => {
    throw new Error('mine');
  });
  const end = emitter.on('e', (n) => seen.push(n));
  expect(emitter.emit('e', 1)).toBe(true);
  failing();
  end();
  expect(emitter.emit('e', 2)).toBe(false);
  expect(seen).toEqual([1]);
  await expect(uncaught).resolves.toMatchObject({ message: 'mine' });
});

describe('a subscription', () => {
  const event = (n: number) => ({ event: 'e', data: n, room: 'r', id: `${n}`, at: n, position: undefined });
  const make = () => new Subscription('r', 10, { leave: async () => {}, onTaken: () => {} });

  test('is done with an event when the next is asked for, and with a mark when all before it are', async () => {
    const subscription = make();
    const done: string[] = [];
    subscription.push(event(1), () => done.push('1'));
    subscription.push(undefined, () => done.push('mark'));
    expect((await subscription.next()).value?.data).toBe(1);
    expect(done).toEqual([]);
    const next = subscription.next();
    await Promise.resolve();
    expect(done).toEqual(['1', 'mark']);
    subscription.push(event(2), () => done.push('2'));
    expect((await next).value?.data).toBe(2);
  });

  test('that ends when an event was given is done with it, if nobody wants it any more', async () => {
    for (const isHandled of [true, false]) {
      const subscription = make();
      let done = 0;
      subscription.push(event(1), () => done++);
      await subscription.next();
      subscription.end({ isHandled }, new RelayError('cancelled'));
      expect(done).toBe(isHandled ? 1 : 0);
    }
  });

  test('answers whoever asks for several at once, in order, and is done with none of them before the next is asked for', async () => {
    const subscription = make();
    const done: number[] = [];
    const push = (n: number): void => subscription.push(event(n), () => done.push(n));
    const asked = [subscription.next(), subscription.next()];
    await Promise.resolve();
    for (const n of [1, 2, 3]) push(n);
    asked.push(subscription.next());
    expect((await Promise.all(asked)).map(({ value }) => value?.data)).toEqual([1, 2, 3]);
    expect(done).toEqual([]);
    const last = [subscription.next(), subscription.next()];
    expect(done).toEqual([1, 2, 3]);
    subscription.end({ isHandled: true }, new RelayError('cancelled'));
    expect(await Promise.all(last)).toEqual([
      { done: true, value: undefined },
      { done: true, value: undefined },
    ]);
  });

  test('that ends gives nothing any more, and is done with what it held only if nobody wants it', async () => {
    for (const isHandled of [true, false]) {
      const subscription = make();
      let done = 0;
      subscription.push(event(1), () => done++);
      subscription.end({ isHandled }, new RelayError('cancelled'));
      subscription.push(event(2), () => done++);
      expect(await subscription.next()).toEqual({ done: true, value: undefined });
      expect(done).toBe(isHandled ? 2 : 1);
      await expect(subscription.ready).rejects.toMatchObject({ code: 'cancelled' });
    }
  });
});
