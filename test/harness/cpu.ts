import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';

const TICKS_PER_SECOND = 100;

/** User and system time of a process since its start, in seconds (Linux). */
export async function cpuSeconds(pid: number): Promise<number> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8');
  // the name in parentheses may hold blanks; utime and stime are the 14th and 15th field
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND;
}

/** For how long a process's main thread was ready to run and had no core, since its start, in ms (Linux; 0 elsewhere). */
export function waitedForCoreMs(pid: number): number {
  try {
    return Number(readFileSync(`/proc/${pid}/schedstat`, 'utf8').split(' ')[1]) / 1e6;
  } catch {
    return 0;
  }
}
