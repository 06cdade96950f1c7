import { expect, test } from 'vitest';
import { OPTIONS } from '../../src/config.js';
import { code, table } from './markdown.js';

const rows = table('docs/operations.md', ['name', 'default', 'meaning']);
const options = Object.entries(OPTIONS);

test('docs/operations.md lists every setting, in the order of the code and with its meaning', () => {
  const documented = rows.map((row) => ({ name: code(row.name), meaning: row.meaning }));
  const real = options.map(([, { env, about, secret }]) => ({
    name: env,
    meaning: secret ? `${about} · secret` : about,
  }));
  expect(documented).toEqual(real);
});

test('every default in docs/operations.md is what the setting is without it', () => {
  const wrong = options.flatMap(([field, option]) => {
    const cell = rows.find((row) => code(row.name) === option.env)?.default ?? 'not there';
    const { initial } = option as { initial: unknown };
    if (field === 'pod') return cell === 'host name' ? [] : [`${option.env}: ${cell}`];
    const isUnset = initial === undefined || (Array.isArray(initial) && initial.length === 0);
    const documented = cell === 'unset' ? undefined : option.schema.safeParse(code(cell)).data;
    const isSame = isUnset ? cell === 'unset' : documented === initial;
    return isSame ? [] : [`${option.env}: ${cell}, and it is ${JSON.stringify(initial)}`];
  });
  expect(wrong).toEqual([]);
});
