import { lockFolder } from '../../dist/embedded/folder-lock.js';
import { startEmbedded } from '../../dist/embedded/index.js';

// A relay's stand-in: `node child.mjs <verb> <dir>`; prints one line, then lives until its parent ends it.
const [verb, dir] = process.argv.slice(2);

process.stdin.resume().on('end', () => process.exit());

const verbs = {
  lock: async () => {
    await lockFolder(dir);
    return {};
  },
  start: async () => {
    const { url } = await startEmbedded({ dir });
    return { url };
  },
};

try {
  console.log(JSON.stringify({ ok: true, ...(await verbs[verb]()) }));
} catch (error) {
  console.log(JSON.stringify({ ok: false, name: error.name, message: error.message }));
}
