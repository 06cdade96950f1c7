import { expect, test } from 'vitest';
import { ApiKeys } from '../../src/admission/api-keys.js';

const FREE = 'a-free-key-of-at-least-32-characters-0';
const BOUND = 'a-bound-key-of-at-least-32-characters-';
const keys = new ApiKeys([
  { key: FREE, tenant: undefined },
  { key: BOUND, tenant: 'acme' },
]);

test('a known key names its tenant, and a fingerprint that says nothing of it', () => {
  expect(keys.identify(`Bearer ${FREE}`).tenant).toBeUndefined();
  const bound = keys.identify(`bearer  ${BOUND}`);
  expect(bound.tenant).toBe('acme');
  expect(bound.fingerprint).toMatch(/^[0-9a-f]{12}$/);
  expect(BOUND).not.toContain(bound.fingerprint);
});

test.each([
  undefined,
  '',
  FREE,
  'Bearer',
  'Bearer ',
  `Basic ${FREE}`,
  `Bearer ${FREE}x`,
  `Bearer ${FREE} ${FREE}`,
  `Bearer ${'x'.repeat(5000)}`,
])('%s is unauthorized', (header) => {
  expect(() => keys.identify(header)).toThrow(expect.objectContaining({ code: 'unauthorized' }));
});
