import { readdir, readFile } from 'node:fs/promises';

/**
 * µs on a CPU of all threads that a process has now (Linux). In ns from the scheduler, where `/proc/<pid>/stat` counts in steps
 * of 10 ms: what a server spends on some hundred connects is a few of these.
 */
export async function cpuUs(pid: number): Promise<number> {
  const threads = await readdir(`/proc/${pid}/task`);
  const times = await Promise.all(
    threads.map(async (thread) => {
      // a thread may end between the two looks
      const text = await readFile(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').catch(() => '0');
      return Number(text.split(' ')[0]) / 1000;
    }),
  );
  return times.reduce((sum, us) => sum + us, 0);
}
