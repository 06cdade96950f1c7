// A member of a back-end group, in a process of its own. Its argument is its settings (`MemberSettings` of member-process.ts). What
// it sees it writes to the ledger's file before it goes on, one line of JSON each: what was written outlives a SIGKILL, and the
// lines of all members are in the order in which they happened. SIGTERM stops it.
import { openSync, writeSync } from 'node:fs';
import { createLog } from '../../dist/backend-log/index.js';

const { url, topic, group, ordered, name, ledger, handlerMs, failPercent, ...options } = JSON.parse(process.argv[2]);
const file = openSync(ledger, 'a');
const note = (what, more) => writeSync(file, `${JSON.stringify({ what, name, at: Date.now(), ...more })}\n`);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The same in every run: 0 to 99 out of an entry's number and its delivery. */
const percentOf = (n, deliveries) => ((Math.imul(n + 1, 2654435761) + Math.imul(deliveries, 40503)) >>> 8) % 100;

const log = createLog(url, { topic, name });
const reader = log.group(group, { from: 'earliest' }).run(
  async (entry) => {
    const { n, key, ms } = entry.data;
    const of = {
      member: reader.id,
      partition: entry.partition,
      offset: entry.offset,
      deliveries: entry.deliveries,
      key,
    };
    note('begin', of);
    await sleep(ms ?? (handlerMs * percentOf(n, entry.deliveries)) / 50);
    if (percentOf(n + 1, entry.deliveries) < failPercent) {
      note('fail', of);
      throw new Error('for once');
    }
    note('end', of);
  },
  {
    ...options,
    ...(ordered ? { orderedBy: (entry) => entry.data.key } : {}),
    onGap: (gap) => note('gap', { member: reader.id, gap }),
  },
);
process.on('SIGTERM', async () => {
  await log.close();
  note('stopped', { member: reader.id });
  process.exit(0);
});
await reader.ready;
note('ready', { member: reader.id });
