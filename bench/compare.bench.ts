import { cpus } from 'node:os';
import { it } from 'vitest';
import { recordEvidence } from '../test/harness/evidence.js';
import type { Bench, Figure } from './figures.js';
import { connect } from './parts/connect.js';
import { delivery } from './parts/delivery.js';
import { growth } from './parts/growth.js';
import { recovery } from './parts/recovery.js';
import { ring } from './parts/ring.js';
import { throughput } from './parts/throughput.js';
import { profiled } from './profile.js';
import { readSettings } from './settings.js';
import { table, writeBetweenMarkers } from './table.js';

const PARTS = [delivery, throughput, recovery, connect, ring, growth];

it('Holdfast beside its alternatives', async () => {
  const settings = readSettings(
    process.env,
    PARTS.map(({ name }) => name),
  );
  const { rounds, sides, profile } = settings;
  const wants = (run: string): boolean => profile === undefined || profile === run;
  const bench: Bench = {
    rounds,
    sides,
    wants,
    scaled: (count) => Math.max(1, Math.round(count * settings.scale)),
    profiled: (run, side, role, work) => (profile === run ? profiled(side[role], `${side.name} ${run}`, work) : work()),
  };
  const figures: Figure[] = [];
  const failures: unknown[] = [];
  for (const part of PARTS) {
    if (settings.only && !settings.only.includes(part.name)) continue;
    const startedAt = performance.now();
    try {
      const found = await part.run(bench);
      figures.push(...found);
      console.log(`${part.name}, ${((performance.now() - startedAt) / 1000).toFixed(0)} s\n${table(found)}`);
    } catch (error) {
      // the other parts still have something to say
      console.error(`${part.name} failed:`, error);
      failures.push(error);
    }
  }
  if (failures.length > 0) throw new AggregateError(failures, `${failures.length} parts failed`);
  if (!settings.isWriting) return;
  await recordEvidence('bench', figures);
  const machine = `Medians of ${rounds} rounds on ${cpus().length} shared cores with Node ${process.version.slice(1)}, made by \`BENCH_WRITE=1 npm run bench\`.`;
  writeBetweenMarkers(
    new URL('../README.md', import.meta.url),
    `${machine}\n\n${table(figures.filter(({ isDetail }) => !isDetail))}`,
  );
});
