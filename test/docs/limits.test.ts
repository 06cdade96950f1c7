import { expect, test } from 'vitest';
import { read } from './markdown.js';

/** Where a number of the documents is written down in the code, and how the document says it. */
const LIMITS: readonly (readonly [file: string, name: string, value: number, page: string, phrase: string])[] = [
  ['admission/identity', 'MAX_TOKEN_LENGTH', 16_384, 'protocol', 'token | 16,384 characters'],
  ['admission/identity', 'CLOCK_TOLERANCE_S', 5, 'protocol', '5 s of difference between clocks'],
  ['admission/permissions', 'MAX_PATTERNS', 100, 'protocol', 'a list of at most 100 patterns'],
  ['gateway/encode-binary', 'MAX_ATTACHMENTS', 10, 'protocol', 'binary parts as Socket.IO has them (at most 10'],
  ['rpc/settings', 'DEFAULT_TIMEOUT_MS', 30_000, 'protocol', '`timeoutMs` | 30,000'],
  ['rpc/settings', 'MAX_TIMEOUT_MS', 600_000, 'protocol', 'from now to the deadline, 1 to 600,000'],
  ['rpc/settings', 'BUDGET_MS', 1900, 'protocol', 'whether Redis has taken a call | 1.9 s'],
  ['rpc/settings', 'KEEP_MS', 60_000, 'rpc', 'until 60 s after the deadline'],
  ['rpc/settings', 'MAX_ATTEMPTS', 5, 'protocol', 'deliveries of one request | 5'],
  ['rpc/rpc-socket', 'MAX_PENDING', 1000, 'protocol', 'calls that one socket waits for | 1,000'],
  ['rpc/rpc-socket', 'MAX_METHODS', 1000, 'protocol', 'methods of a socket | 1,000'],
  ['rpc/rpc-socket', 'MAX_INSTANCE_LENGTH', 100, 'protocol', 'an id of the process, 1 to 100 characters'],
  ['rpc/caller', 'MAX_HELD', 33_554_432, 'protocol', 'waits for at one pod | 32 MB'],
  ['rpc/ending', 'MAX_REMEMBERED', 10_000, 'operations', 'the newest 10,000 of a minute'],
  ['rpc/ending', 'MAX_REMEMBERED_BYTES', 67_108_864, 'operations', 'up to 64 MiB of answers'],
  ['rpc/stock-queues', 'CLIENTS_PAUSE_MS', 200, 'rpc', 'asked at most five times a second'],
  ['wire/event', 'MAX_DEPTH', 1000, 'protocol', 'at most 1,000 levels deep'],
  ['gateway/socket/commands', 'MAX_ROOMS', 1000, 'protocol', 'rooms of a socket | 1,000'],
  ['gateway/socket/commands', 'MAX_WAITING', 500_000, 'protocol', 'wait their turn | 500,000'],
  ['gateway/socket/commands', 'COMMAND_SIZE', 200, 'protocol', 'each counting 200 beside its own'],
  ['gateway/socket/handshake', 'HOLD_MS', 5000, 'protocol', 'the transport is closed after 5 to 10 s'],
  ['gateway/http/server', 'MAX_LIST', 100, 'protocol', 'A list of 1 to 100 such objects'],
  ['gateway/http/server', 'MIN_BODY_BYTES', 2_000_000, 'protocol', 'HTTP body; list of events | 2,000,000 bytes; 100'],
  ['gateway/http/server', 'MAX_HISTORY', 1000, 'protocol', '`limit` | 1 to 1000'],
  ['gateway/history', 'MAX_SCANNED', 5000, 'protocol', '5,000 entries looked at'],
  ['gateway/outbox', 'BEHIND_BYTES', 262_144, 'protocol', 'unsent bytes of a socket | 256 KiB'],
  ['gateway/outbox', 'MAX_UNSENT_BYTES', 1_048_576, 'protocol', 'more than 1 MiB of ephemeral events or answers'],
  ['gateway/resume-records', 'RECORD_LIFE_MS', 86_400_000, 'operations', 'at most 24 h'],
  ['log/appender', 'MAX_IDS_PER_BUCKET', 200_000, 'protocol', 'per partition and window | 200,000'],
  ['log/appender', 'MAX_WAITING_BYTES', 67_108_864, 'protocol', '64 MB of appends wait'],
  ['log/appender', 'BUDGET_MS', 1950, 'protocol', 'answer to a publish | 2 s'],
  ['log/entry', 'OVERHEAD_BYTES', 450, 'operations', 'counts 450 bytes an entry'],
  ['log/offset-times', 'SIZE', 131_072, 'operations', '1 MB of offsets'],
  ['pods/lease', 'LEASE_MS', 3000, 'operations', 'waits for one lease (3 s)'],
  ['pods/reaper', 'CLAIM_MS', 5000, 'operations', 'who buries it | 5 s'],
  ['pods/inbox', 'LIFE_MS', 60_000, 'operations', 'messages from pod to pod | 60 s'],
  ['relay', 'GATE_MS', 10_000, 'operations', 'A start waits 10 s'],
  ['relay', 'ROUTING_MAX_MS', 5000, 'operations', 'for D/3, at most 5 s'],
  ['relay', 'ROUTING_SHARE', 1 / 3, 'operations', 'for D/3, at most 5 s'],
  ['cli/serve-process', 'GRACE_MS', 15_000, 'operations', 'After D + 15 s it exits'],
  ['cli/serve-process', 'SAME_SIGNAL_MS', 500, 'operations', 'half a second or more after the first'],
];

/** `24 * 3_600_000`, `1 / 3`: products and quotients of numbers. */
function evaluate(text: string): number {
  const [first = '', ...rest] = text.replaceAll('_', '').split(/\s*([*/])\s*/);
  let value = Number(first);
  for (let i = 0; i < rest.length; i += 2)
    value = rest[i] === '*' ? value * Number(rest[i + 1]) : value / Number(rest[i + 1]);
  return value;
}

test.each(LIMITS)('the number of src/%s %s is what the documents say', (file, name, value, page, phrase) => {
  const match = new RegExp(`^(?:export )?const ${name} = ([\\d_ */.]+);`, 'm').exec(read(`src/${file}.ts`));
  expect(evaluate(match?.[1] ?? '')).toBe(value);
  expect(read(`docs/${page}.md`).replace(/\s+/g, ' ')).toContain(phrase);
});
