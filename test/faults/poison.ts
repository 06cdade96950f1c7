import { randomBytes } from 'node:crypto';
import type { Redis } from 'ioredis';
import { KEYS } from './stage.js';

/** What a newer Holdfast does: a dense offset in its own name, and the meta says so. */
const APPEND = `
local m = redis.call('HMGET', KEYS[2], 'offset', 'ms')
local offset, time = m[1] + 1, redis.call('TIME')
local ms = math.max(tonumber(m[2]), time[1] * 1000 + math.floor(time[2] / 1000) + 1)
redis.call('XADD', KEYS[1], string.format('%.0f-%.0f', ms, offset), string.format('%.0f', offset), ARGV[1])
redis.call('HSET', KEYS[2], 'offset', string.format('%.0f', offset), 'ms', string.format('%.0f', ms))`;

const OURS = JSON.stringify({ v: 1, r: ['default/all'], p: 'default/stranger', i: 'poison' });
const PAYLOAD = JSON.stringify(['tick', { n: 0 }, { room: 'all', id: 'poison', at: 0 }]);

/** Bodies under an id of their own, far ahead of ours, with the field's name that an entry of ours would have there. */
const BODIES: readonly (string | Buffer)[] = [
  randomBytes(300),
  '',
  'no line break',
  `{"v":1,"r":["default/all"]\n${PAYLOAD}`, // no JSON
  `null\n${PAYLOAD}`,
  `{"v":1,"r":"default/all","p":"default/stranger","i":"poison"}\n${PAYLOAD}`,
  `{"v":"1","r":["default/all"],"p":"default/stranger","i":"poison"}\n${PAYLOAD}`,
  `{"v":99}\n${PAYLOAD}`,
  `${OURS}\n${PAYLOAD}`, // whole, but nobody appended it
];

/** Far ahead in the second part of the id, which counts our entries; the last is the most that Redis has. */
const SEQS = ['1000000', '9007199254740993', '18446744073709551615'];

/** What a pod that meets all of it counts. */
export const POISON = { foreign: 2 + BODIES.length + SEQS.length, format: 1 };

/** Writes into the stream what none of ours, or not one of this version, would write. */
export async function addPoison(admin: Redis): Promise<void> {
  await admin.xadd(KEYS.stream, '*', 'field', 'value');
  await admin.xadd(KEYS.stream, '*', randomBytes(20), randomBytes(20));
  await admin.eval(APPEND, 2, KEYS.stream, KEYS.meta, `{"v":99,"x":"of a later version"}\n${PAYLOAD}`);
  for (const [n, body] of BODIES.entries()) {
    const ms = await nextMs(admin);
    const seq = String(500_000 + n);
    await admin.xadd(KEYS.stream, `${ms}-${seq}`, seq, body);
  }
  for (const seq of SEQS) await admin.xadd(KEYS.stream, `${await nextMs(admin)}-${seq}`, seq, `${OURS}\n${PAYLOAD}`);
}

/** Newer than all that the stream holds. */
async function nextMs(admin: Redis): Promise<number> {
  const [newest] = await admin.xrevrange(KEYS.stream, '+', '-', 'COUNT', 1);
  return Math.max(Number(newest?.[0].split('-')[0] ?? 0), Date.now()) + 5;
}
