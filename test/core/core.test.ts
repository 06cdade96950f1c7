import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { fullJitter } from '../../src/core/backoff.js';
import { ERROR_CODES, RelayError, toWireError } from '../../src/core/errors.js';
import { Service } from '../../src/core/service.js';
import { sleep, within } from '../../src/core/sleep.js';

test('a back-off lies between 0 and its cap, whatever the attempt', () => {
  fc.assert(
    fc.property(fc.nat(10_000), fc.double({ min: 0, max: 1, noNaN: true }), (attempt, random) => {
      const wait = fullJitter(attempt, 25, 500, () => random);
      expect(wait).toBeGreaterThanOrEqual(0);
      expect(wait).toBeLessThanOrEqual(500);
    }),
  );
});

describe('errors', () => {
  test('what is no RelayError crosses the wire as `internal`, without its text', () => {
    for (const thrown of [new Error('secret'), 'secret', undefined, null, { message: 'secret' }]) {
      expect(toWireError(thrown)).toEqual({ error: 'Internal error', code: 'internal', retryable: false });
    }
  });

  test('every code has a text, a status of its kind, and comes with them', () => {
    for (const [code, { status, retryable, text }] of Object.entries(ERROR_CODES)) {
      const error = new RelayError(code as keyof typeof ERROR_CODES);
      expect(error).toMatchObject({ code, status, retryable, message: text });
      expect(status).toBeGreaterThanOrEqual(400);
    }
    const late = new RelayError('unavailable', 'x', {
      mayHaveHappened: true,
      retryAfterMs: 5,
      cause: new Error('why'),
    });
    expect(toWireError(late)).toEqual({
      error: 'x',
      code: 'unavailable',
      retryable: true,
      mayHaveHappened: true,
      retryAfterMs: 5,
    });
  });
});

describe('waiting', () => {
  test('a sleep ends when its signal does, before or during', async () => {
    await sleep(60_000, AbortSignal.abort());
    const aborter = new AbortController();
    const sleeping = sleep(60_000, aborter.signal);
    aborter.abort();
    await sleeping;
  });

  test('what takes too long is undefined, and its late failure harms nobody', async () => {
    let fail: (error: Error) => void = () => {};
    const late = new Promise<number>((_, reject) => {
      fail = reject;
    });
    expect(await within(5, late)).toBeUndefined();
    fail(new Error('late'));
    await sleep(5);
    expect(await within(1000, Promise.resolve(1))).toBe(1);
    await expect(within(1000, Promise.reject(new Error('soon')))).rejects.toThrow('soon');
  });
});

describe('a service', () => {
  class Counted extends Service {
    starts = 0;
    stops = 0;
    fails = false;
    protected async onStart(): Promise<void> {
      this.starts++;
      if (this.fails) throw new Error('no');
    }
    protected async onStop(): Promise<void> {
      this.stops++;
    }
  }

  test('starts and stops once, however often it is asked', async () => {
    const service = new Counted();
    await service.stop();
    expect(service.stops).toBe(0);
    await Promise.all([service.start(), service.start()]);
    await Promise.all([service.stop(), service.stop(), service[Symbol.asyncDispose]()]);
    expect([service.starts, service.stops]).toEqual([1, 1]);
  });

  test('may be started again after a start that failed', async () => {
    const service = new Counted();
    service.fails = true;
    await expect(service.start()).rejects.toThrow('no');
    service.fails = false;
    await service.start();
    expect(service.starts).toBe(2);
  });
});
