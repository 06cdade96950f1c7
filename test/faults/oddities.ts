import { expect } from 'vitest';
import { eventually } from '../harness/poll.js';
import { addPoison, POISON } from './poison.js';
import type { Group } from './scenario.js';

export const ODDITIES: Group = {
  name: 'clocks and strangers',
  stage: { fakesTime: true },
  scenarios: [
    {
      name: 'the clock of one pod an hour ahead, of the other an hour behind',
      lastsMs: { short: 1500, long: 60_000 },
      async inject({ clocks, pods }) {
        await Promise.all(clocks.map((clock, n) => clock.offBy(n === 0 ? HOUR_SECONDS : -HOUR_SECONDS)));
        for (const [n, { url }] of pods.entries())
          await eventually(async () => expect(await hoursAhead(url)).toBe(n === 0 ? 1 : -1));
      },
      heal: async ({ clocks }) => void (await Promise.all(clocks.map((clock) => clock.offBy(0)))),
      expects: { hears: 'nothing' },
    },
    {
      name: 'poisoned entries in the stream',
      inject: ({ admin }) => addPoison(admin),
      expects: { hears: 'nothing', counts: countsPoison },
    },
    {
      name: 'poisoned entries in the stream where a pod starts',
      async inject({ admin, pods: [pod] }) {
        await pod?.sigkill();
        await addPoison(admin);
        await pod?.start();
      },
      expects: { hears: 'anything', disconnects: true, counts: countsPoison },
    },
  ],
};

const HOUR_SECONDS = 3600;

/** By the pod's own Date header. */
async function hoursAhead(url: string): Promise<number> {
  const response = await fetch(`${url}/health`);
  return Math.round((Date.parse(response.headers.get('date') ?? '') - Date.now()) / 3_600_000);
}

function countsPoison(rise: (series: string) => number): void {
  for (const reason of ['foreign', 'format'] as const)
    expect(rise(`holdfast_log_entries_skipped_total{reason="${reason}"}`)).toBe(POISON[reason]);
}
