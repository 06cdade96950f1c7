import { expect, test } from 'vitest';
import { createLogger, redactText } from '../../src/ops/index.js';

const JWT = 'eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl';

function capture() {
  const lines: string[] = [];
  const sink = { write: (line: string) => void lines.push(line), flush: async () => {} };
  const logger = createLogger({ level: 'trace', bufferBytes: 1024, base: { pod: 'pod-a' }, sink });
  return { logger, lines };
}

test.each([
  ['redis://user:pass@host:6379/0', 'redis://***@host:6379/0'],
  ['see rediss://:p@ss/wo:rd@host, then', 'see rediss://***@host, then'],
  ['postgres://app@db/x and http://host:3000/a?b=c@d', 'postgres://***@db/x and http://host:3000/a?b=c@d'],
  [`Authorization: Bearer ${JWT}`, 'Authorization: Bearer ***'],
  ['bearer abcdef0123456789', 'bearer ***'],
  [`bad token ${JWT} here`, 'bad token *** here'],
  ['GET /socket.io/?EIO=4&token=abc.def&transport=websocket', 'GET /socket.io/?EIO=4&token=***&transport=websocket'],
  ['/x?auth=abc&access_token=def#f', '/x?auth=***&access_token=***#f'],
  ['{"token":"abc\\"def","room":"r1"}', '{"token":"***","room":"r1"}'],
  ['text {\\"password\\":\\"hunter2\\",\\"n\\":1}', 'text {\\"password\\":\\"***\\",\\"n\\":1}'],
  ['the token has expired, author=ann', 'the token has expired, author=ann'],
])('%s', (text, wanted) => {
  expect(redactText(text)).toBe(wanted);
});

test('a long text is cut, and the cut leaves no half of a secret', () => {
  const text = redactText(`${'a '.repeat(4090)} redis://user:hunter2${'x'.repeat(200)}@host`);
  expect(text.length).toBeLessThan(8300);
  expect(text).not.toContain('hunter');
});

test('hostile texts cost little', () => {
  const before = process.cpuUsage();
  for (const piece of ['a://', 'a.', '\\', '"token":"', 'token=', 'eyJ', 'bearer ', 'a:@/', '\\"token'])
    redactText(piece.repeat(8192 / piece.length));
  expect(process.cpuUsage(before).user).toBeLessThan(1_000_000);
});

test('no secret reaches a line: fields at any depth, messages, errors with causes, child loggers', () => {
  const { logger, lines } = capture();
  const cause = Object.assign(new Error('WRONGPASS for redis://app:hunter2@host'), {
    command: { name: 'auth', args: ['app', 'hunter2'] },
  });
  logger.warn({ token: 'hunter2', a: { b: [{ headers: { Authorization: 'hunter2', 'X-Api-Key': 'hunter2' } }] } }, 'x');
  logger.error({ err: new Error('cannot start with ?token=hunter2', { cause }) }, 'failed at redis://:hunter2@host');
  logger.error({ error: cause, handshake: { auth: { token: 'hunter2', pid: 'hunter2' } } }, 'y');
  logger.error(cause);
  logger.info({ HOLDFAST_JWT_SECRET: 'hunter2', apiKeys: [{ key: 'hunter2' }], password: { value: 'hunter2' } }, 'z');
  logger.child({ secret: 'hunter2', url: 'redis://u:hunter2@host' }).info({ sid: 'hunter2' }, `Bearer ${JWT}`);
  expect(lines).toHaveLength(6);
  expect(lines.join('')).not.toMatch(/hunter2|eyJ/);
  const records = lines.map((line) => JSON.parse(line));
  expect(records.every((record) => record.pod === 'pod-a' && typeof record.level === 'number')).toBe(true);
  expect(records[1].msg).toBe('failed at redis://***@host');
  expect(records[1].err.stack).toContain('redaction.test.ts');
});

test('what is no secret stays as it is', () => {
  const { logger, lines } = capture();
  const fields = {
    pid: 42,
    hasToken: true,
    HOLDFAST_API_KEYS: [],
    password: null,
    key: 'hf:log',
    auth: { position: 'e:0:1-1' },
  };
  logger.info(fields, 'a "quoted" line\nand another');
  expect(JSON.parse(lines[0] as string)).toMatchObject({ ...fields, msg: 'a "quoted" line\nand another' });
  expect(lines[0]?.match(/\n/g)).toHaveLength(1);
});
