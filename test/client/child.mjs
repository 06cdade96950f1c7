// A program of an application's: prints what it handles, one JSON line each, and keeps its place in a file.
import { createClient } from 'holdfast/client';
import { fileStore } from 'holdfast/client/file';

const [url, token, path, room] = process.argv.slice(2);
const client = createClient({ url, token, store: fileStore(path), saveEveryMs: 20 });
const say = (what, value) => process.stdout.write(`${JSON.stringify([what, value])}\n`);
client.on('resync', ({ reason }) => say('resync', reason));
client.on('gap', ({ reason }) => say('gap', reason));
client.on('error', ({ code, message }) => say('error', `${code}: ${message}`));
client.on('status', ({ state }) => say('status', state));
client.subscribe(room, { onEvent: ({ data }) => say('event', data) });
process.on('SIGTERM', () => client.close());
