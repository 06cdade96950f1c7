import { expect, test } from 'vitest';
import { ApiKeys } from '../../src/admission/api-keys.js';

const FREE = 'a-free-key-of-at-least-32-characters-0';
const BOUND = 'a-bound-key-of-at-least-32-characters-';
const keys = new ApiKeys([
  { key: FREE, tenant: undefined },
  { key: BOUND, tenant: 'acme' },
]);

test('a known key names its tenant, and a fingerprint that says nothing of it', async () => {
  expect((await keys.identify(`Bearer ${FREE}`)).tenant).toBeUndefined();
  const bound = await keys.identify(`bearer  ${BOUND}`);
  expect(bound.tenant).toBe('acme');
  expect(bound.fingerprint).toMatch(/^[0-9a-f]{12}$/);
  expect(BOUND).not.toContain(bound.fingerprint);
});

test('a key of the environment may do everything, and a bound one all but administer', async () => {
  const scopesOf = async (key: string) => [...(await keys.identify(`Bearer ${key}`)).scopes].sort();
  expect(await scopesOf(FREE)).toEqual(['admin', 'call', 'publish', 'read', 'sessions']);
  expect(await scopesOf(BOUND)).toEqual(['call', 'publish', 'read', 'sessions']);
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
])('%s is unauthorized', async (header) => {
  await expect(keys.identify(header)).rejects.toMatchObject({ code: 'unauthorized' });
});
