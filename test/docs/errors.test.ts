import { expect, test } from 'vitest';
import { ERROR_CODES } from '../../src/core/errors.js';
import { code, table } from './markdown.js';

test('docs/protocol.md lists every error code, with its status, whether to retry and whether the connection closes', () => {
  const rows = table('docs/protocol.md', ['code', 'HTTP', 'retryable', 'closes', 'meaning']);
  const documented = rows.map((row) => [code(row.code), row.HTTP, row.retryable, row.closes]);
  const yes = (value: boolean): string => (value ? 'yes' : 'no');
  const real = Object.entries(ERROR_CODES).map(([name, { status, retryable, closes }]) => [
    name,
    String(status),
    yes(retryable),
    yes(closes),
  ]);
  expect(documented).toEqual(real);
});
