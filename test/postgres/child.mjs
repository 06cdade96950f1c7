import { silentLogger } from '../../dist/core/ports.js';
import { lockFolder } from '../../dist/embedded/folder-lock.js';
import { openPglite } from '../../dist/embedded/pglite.js';
import { untilServing } from '../../dist/postgres/serving.js';

// A relay's stand-in: `node child.mjs <verb> <where> [<folder>] [<name>]`; each line that it prints is JSON.
const [verb, where, folder, name] = process.argv.slice(2);
const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

const verbs = {
  migrate: async () => {
    const applied = await untilServing({
      url: where,
      name,
      mayMigrate: true,
      withinMs: 10_000,
      onRefused: (code) => say({ refused: code }),
      signal: new AbortController().signal,
      folder,
    });
    say({ applied });
  },
  // says each row's number once it is committed, until it is killed
  write: async () => {
    await lockFolder(where);
    const database = await openPglite(where, silentLogger);
    await database.query('create table if not exists written (n int primary key)');
    const [{ from }] = await database.query('select coalesce(max(n), 0)::int as from from written');
    for (let n = from + 1; ; n++) {
      await database.query('insert into written values ($1)', [n]);
      say({ n });
    }
  },
};

try {
  await verbs[verb]();
} catch (error) {
  say({ failed: error.message });
  process.exitCode = 1;
}
