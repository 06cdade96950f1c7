import { fileURLToPath } from 'node:url';
import { Child } from '../harness/child.js';
import { open } from '../harness/pglite.js';
import { eventually } from '../harness/poll.js';

const CHILD = fileURLToPath(new URL('./child.mjs', import.meta.url));

/** Kills a process (SIGKILL) that has committed at least `least` rows on `dir`, one by one, and counts what is there then. */
export async function killWhileWriting(dir: string, least: number): Promise<{ acknowledged: number; stored: number }> {
  const child = new Child(process.execPath, { args: [CHILD, 'write', dir] });
  const lastOf = (): number => JSON.parse(child.lines.at(-1) ?? '{"n":0}').n;
  const firstOf = (): number => JSON.parse(child.lines[0] ?? '{"n":0}').n;
  await eventually(() => child.lines.length >= least || !child.isRunning, { withinMs: 60_000, what: 'rows' });
  await child.kill();
  if (child.lines.length < least) throw new Error(`it did not write: ${child.tail()}`);
  const acknowledged = lastOf() - firstOf() + 1;
  const database = await open(dir);
  const [row] = await database.query('select count(*)::int as count from written where n >= $1', [firstOf()]);
  await database.close();
  return { acknowledged, stored: row?.count as number };
}
