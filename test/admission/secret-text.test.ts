import fc from 'fast-check';
import { expect, test } from 'vitest';
import { idOfApiKey, isDeviceToken, makeApiKey, makeDeviceToken, sha256 } from '../../src/admission/secret-text.js';

test('a device token is one, and no two are alike', () => {
  const tokens = Array.from({ length: 100 }, makeDeviceToken);
  expect(tokens.every(isDeviceToken)).toBe(true);
  expect(new Set(tokens).size).toBe(100);
  expect(tokens[0]).toMatch(/^hfd_[0-9A-Za-z]{49}$/);
});

test('an API key names its id, and no other', () => {
  const { id, key } = makeApiKey();
  expect(key).toMatch(new RegExp(`^hf_${id}_[0-9A-Za-z]{49}$`));
  expect(idOfApiKey(key)).toBe(id);
  expect(idOfApiKey(makeDeviceToken())).toBeUndefined();
  expect(isDeviceToken(key)).toBe(false);
});

test('every letter of a secret can be any of 62', () => {
  const seen = new Set(Array.from({ length: 100 }, () => makeDeviceToken().slice(4, 47)).join(''));
  expect(seen.size).toBe(62);
});

test('one that was mistyped, cut short or drawn out is none', () => {
  const letter = fc.constantFrom(...'0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_- é');
  fc.assert(
    fc.property(fc.nat(100), letter, fc.boolean(), (at, other, isKey) => {
      const text = isKey ? makeApiKey().key : makeDeviceToken();
      const isGood = (wrong: string): boolean => isDeviceToken(wrong) || idOfApiKey(wrong) !== undefined;
      const index = at % text.length;
      const mistyped = text.slice(0, index) + other + text.slice(index + 1);
      expect(isGood(mistyped)).toBe(mistyped === text);
      expect(isGood(text.slice(0, index))).toBe(false);
      expect(isGood(`${text}\n`)).toBe(false);
      expect(isGood(text + other)).toBe(false);
    }),
  );
});

test('a hash has 32 bytes', () => {
  expect(sha256('').toString('hex')).toBe('e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855');
});
