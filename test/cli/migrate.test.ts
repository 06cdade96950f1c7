import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { freePort } from '../harness/free-port.js';
import { type PostgresProcess, startPostgres } from '../harness/postgres.js';
import { run } from './run.js';

describe('holdfast migrate', () => {
  let server: PostgresProcess;

  beforeAll(async () => {
    server = await startPostgres();
  });
  afterAll(() => server.stop());

  it('prints what it applied, and nothing a second time', async () => {
    const url = await server.createDatabase();
    const first = await run(['migrate'], { DATABASE_URL: url });
    expect(first).toMatchObject({ code: 0, out: 'APPLIED\n0001_admission.sql\n', err: '' });
    const second = await run(['migrate'], { DATABASE_URL: url });
    expect(second).toMatchObject({ code: 0, out: 'the schema is up to date\n', err: '' });
    const third = await run(['migrate', '-o', 'json'], { DATABASE_URL: url });
    expect({ code: third.code, out: JSON.parse(third.out) }).toEqual({ code: 0, out: [] });
  });

  it('takes the flag before the variable', async () => {
    const url = await server.createDatabase();
    const { code, out } = await run(['migrate', '--database-url', url, '-o', 'json'], {
      DATABASE_URL: 'postgres://nowhere/x',
    });
    expect({ code, out: JSON.parse(out) }).toEqual({ code: 0, out: [{ migration: '0001_admission.sql' }] });
  });

  it.each([
    [2, 'cannot be reached', async () => server.urlOf('postgres', await freePort())],
    [1, 'refuses this relay', async () => server.urlOf('not_there')],
    [1, 'DATABASE_URL: wants', async () => 'mysql://x'],
    [1, 'say which Postgres', async () => ''],
  ])('exits with %i and one line: %s', async (expected, text, urlOf) => {
    const { code, out, err } = await run(['migrate'], { DATABASE_URL: await urlOf() });
    expect({ code, out }).toEqual({ code: expected, out: '' });
    expect(err).toMatch(/^holdfast: [^\n]*\n$/);
    expect(err).toContain(text);
    expect(err).not.toContain('a-password-of-tests');
  });

  it.each([
    ['no URL of a Postgres', 'mysql://somebody:a-secret@x/y', '--database-url: wants postgres://'],
    ['a certificate that is not there', 'postgres://somebody:a-secret@x/y?sslrootcert=/not/there', '--database-url: '],
  ])('names the flag when it holds %s', async (_what, url, text) => {
    const { code, out, err } = await run(['migrate', '--database-url', url], { DATABASE_URL: 'postgres://nowhere/x' });
    expect({ code, out }).toEqual({ code: 1, out: '' });
    expect(err).toMatch(/^holdfast: [^\n]*\n$/);
    expect(err).toContain(text);
    expect(err).not.toMatch(/DATABASE_URL|a-secret/);
  });
});
