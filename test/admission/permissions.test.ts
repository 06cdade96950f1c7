import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { isAllowed, matches, parsePermissions } from '../../src/admission/permissions.js';

const DEFAULTS = { subscribe: ['user:a'], publish: [], call: ['a/*'], register: ['a/*'] };

/** The obvious matcher: slow, and certainly right. */
function reference(pattern: string, text: string): boolean {
  const escaped = [...pattern].map((char) => (char === '*' ? '[^]*' : char.replace(/[\\^$.|?+()[\]{}/-]/g, '\\$&')));
  return new RegExp(`^${escaped.join('')}$`, 'u').test(text);
}

test('a pattern matches what the obvious regular expression matches', () => {
  const text = fc.string({ unit: fc.constantFrom('a', 'b', '*', '/', '.', '(', 'é', '💧'), maxLength: 8 });
  fc.assert(
    fc.property(text, text, (pattern, name) => {
      expect(matches(pattern, name)).toBe(reference(pattern, name));
    }),
    { numRuns: 3000 },
  );
});

test('a pattern full of stars takes no time', () => {
  const before = process.cpuUsage();
  matches(`${'*a'.repeat(400)}b`, 'a'.repeat(200));
  expect(process.cpuUsage(before).user).toBeLessThan(500_000);
});

test('a star may stand for nothing, and a pattern without one matches only itself', () => {
  expect(matches('room*', 'room')).toBe(true);
  expect(matches('*', '')).toBe(true);
  expect(matches('room', 'room1')).toBe(false);
  expect(matches('Room', 'room')).toBe(false);
});

describe('the claim caps', () => {
  test('a missing list means the default, an empty one nothing', () => {
    expect(parsePermissions(undefined, DEFAULTS)).toBe(DEFAULTS);
    expect(parsePermissions({}, DEFAULTS)).toEqual(DEFAULTS);
    const parsed = parsePermissions({ subscribe: [], publish: ['x*'] }, DEFAULTS);
    expect(parsed).toEqual({ ...DEFAULTS, subscribe: [], publish: ['x*'] });
    expect(isAllowed([], 'anything')).toBe(false);
  });

  test('what is malformed is no claim at all, never a wider one', () => {
    const pattern = ['x'];
    for (const caps of [null, 'x', 1, true, [], [pattern]]) expect(parsePermissions(caps, DEFAULTS)).toBeUndefined();
    for (const list of [null, 'x', 1, {}, [1], [null], [''], ['x'.repeat(1001)], Array(101).fill('x')])
      expect(parsePermissions({ publish: list }, DEFAULTS), JSON.stringify(list)?.slice(0, 40)).toBeUndefined();
    expect(parsePermissions({ publish: Array(100).fill('x') }, DEFAULTS)?.publish).toHaveLength(100);
  });

  test('no list comes from a prototype', () => {
    const caps = Object.create({ publish: ['*'] });
    expect(parsePermissions(caps, DEFAULTS)?.publish).toEqual([]);
    expect(parsePermissions(JSON.parse('{"__proto__":{"publish":["*"]}}'), DEFAULTS)?.publish).toEqual([]);
  });
});
