import { mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Worker } from './worker.js';

interface ProfileNode {
  readonly id: number;
  readonly callFrame: { readonly functionName: string; readonly url: string; readonly lineNumber: number };
}

interface CpuProfile {
  readonly nodes: readonly ProfileNode[];
  readonly samples: readonly number[];
  /** µs since the sample before. */
  readonly timeDeltas: readonly number[];
}

const TOP = 30;

/** Does the work while a worker profiles itself; prints where its own time went, and keeps the profile for a viewer. */
export async function profiled<Result>(worker: Worker, title: string, work: () => Promise<Result>): Promise<Result> {
  await worker.ask('profile');
  const result = await work();
  const profile = await worker.ask<CpuProfile>('profiled');
  const file = join(await mkdtemp(join(tmpdir(), 'holdfast-profile-')), `${title.replace(/\W+/g, '-')}.cpuprofile`);
  await writeFile(file, JSON.stringify(profile));
  console.log(`${title}: self time, ${file}\n${selfTimes(profile).slice(0, TOP).join('\n')}`);
  return result;
}

function selfTimes({ nodes, samples, timeDeltas }: CpuProfile): string[] {
  const names = new Map(nodes.map(({ id, callFrame }) => [id, nameOf(callFrame)]));
  const times = new Map<string, number>();
  let total = 0;
  for (const [i, id] of samples.entries()) {
    const name = names.get(id) as string;
    const us = timeDeltas[i] as number;
    if (name.startsWith('(idle)')) continue;
    times.set(name, (times.get(name) ?? 0) + us);
    total += us;
  }
  return [...times]
    .sort(([, a], [, b]) => b - a)
    .map(
      ([name, us]) =>
        `${((us / total) * 100).toFixed(1).padStart(6)} % ${(us / 1000).toFixed(0).padStart(6)} ms  ${name}`,
    );
}

function nameOf({ functionName, url, lineNumber }: ProfileNode['callFrame']): string {
  const file = url.replace(/^.*\/(node_modules|dist|bench)\//, (_, root) =>
    root === 'node_modules' ? '' : `${root}/`,
  );
  return `${functionName || '(anonymous)'}${file && ` ${file}:${lineNumber + 1}`}`;
}
