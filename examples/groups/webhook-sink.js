// REDIS_URL=… WEBHOOK_SECRET=… node webhook-sink.js <url>: each event as a signed POST, at least once, by tenant in order
import { createHmac } from 'node:crypto';
import { createLog } from 'holdfast/log';

const [url] = process.argv.slice(2);
const { REDIS_URL = 'redis://127.0.0.1:6379', TOPIC = 'events', WEBHOOK_SECRET } = process.env;
if (!url || !WEBHOOK_SECRET) {
  console.error('WEBHOOK_SECRET=… node webhook-sink.js <url>');
  process.exit(2);
}

const log = createLog(REDIS_URL, { topic: TOPIC });
const sink = log.group('webhooks', { from: 'earliest' }).run(post, {
  orderedBy: 'tenant',
  concurrency: 32,
  timeoutMs: 10_000,
  maxDeliveries: 8,
  onGap: (gap) => console.error('never posted:', gap),
});
await sink.ready;
console.log(`posts ${TOPIC} to ${url}`);

for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, () => log.close());
await sink.ended;

async function post(entry, { signal }) {
  const body = JSON.stringify(entry);
  const time = Math.floor(Date.now() / 1000);
  const proof = createHmac('sha256', WEBHOOK_SECRET).update(`${time}.${body}`).digest('hex');
  const headers = {
    'content-type': 'application/json',
    // the same at every delivery: by it the receiver knows a second one
    'webhook-id': entry.position,
    'webhook-timestamp': String(time),
    'webhook-signature': `v1=${proof}`,
  };
  const answer = await fetch(url, { method: 'POST', headers, body, signal });
  await answer.body?.cancel();
  // thrown: it comes again after a back-off, and the eighth time becomes a dead letter
  if (!answer.ok) throw new Error(`${url} answered ${answer.status}`);
}
