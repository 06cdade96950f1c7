// REDIS_URL=… node append.js <event> [<JSON> [<tenant>]]
import { createLog } from 'holdfast/log';

const [event, json = 'null', tenant] = process.argv.slice(2);
const { REDIS_URL = 'redis://127.0.0.1:6379', TOPIC = 'events' } = process.env;

const log = createLog(REDIS_URL, { topic: TOPIC });
const { position } = await log.append({ event, data: JSON.parse(json), tenant });
console.log(position);
await log.close();
