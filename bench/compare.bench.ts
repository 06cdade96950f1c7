import { cpus } from 'node:os';
import { it } from 'vitest';
import { recordEvidence } from '../test/harness/evidence.js';
import type { Bench, Figure } from './figures.js';
import { admission } from './parts/admission.js';
import { connect } from './parts/connect.js';
import { delivery } from './parts/delivery.js';
import { groups } from './parts/groups.js';
import { growth } from './parts/growth.js';
import { recovery } from './parts/recovery.js';
import { ring } from './parts/ring.js';
import { rpc } from './parts/rpc.js';
import { throughput } from './parts/throughput.js';
import { profiled } from './profile.js';
import { readSettings } from './settings.js';
import { markdown, type Table, writeBetweenMarkers } from './table.js';

const TABLES: readonly Table[] = [
  {
    name: 'bench',
    page: 'README.md',
    parts: [delivery, throughput, recovery, connect, ring, growth],
    columns: [
      ['holdfast', 'Holdfast'],
      ['streams', 'streams adapter'],
      ['pubsub', 'Pub/Sub adapter'],
      ['relay', 'Holdfast relay'],
      ['floor', 'floor'],
    ],
    ratio: 'Holdfast / streams',
  },
  {
    name: 'bench-rpc',
    page: 'README.md',
    parts: [rpc],
    columns: [
      ['holdfast', 'Holdfast'],
      ['bullmq', 'stock BullMQ'],
      ['emitWithAck', '`emitWithAck`'],
      ['fetchSockets', '`fetchSockets`'],
    ],
    ratio: 'Holdfast / peer',
  },
  {
    name: 'bench-admission',
    page: 'docs/benchmarks.md',
    parts: [admission],
    columns: [
      ['bare', 'bare Socket.IO'],
      ['redis', 'relay, no database'],
      ['postgres', 'relay with Postgres'],
      ['devices', '… and device sessions'],
    ],
    ratio: 'device sessions / bare',
  },
  {
    name: 'bench-groups',
    page: 'docs/benchmarks.md',
    parts: [groups],
    columns: [
      ['holdfast', 'Holdfast'],
      ['byHand', '`XREADGROUP` + `XACK` by hand'],
      ['bullmq', 'BullMQ Worker'],
    ],
    ratio: 'Holdfast / peer',
  },
];

it('Holdfast beside its alternatives', async () => {
  const settings = readSettings(
    process.env,
    TABLES.flatMap(({ parts }) => parts.map(({ name }) => name)),
  );
  const { rounds, sides, callSides, doors, groupSides, profile, only } = settings;
  const isWhole = ({ parts }: Table): boolean => parts.every(({ name }) => only?.includes(name) ?? true);
  if (settings.isWriting && !TABLES.some(isWhole)) throw new Error('BENCH_WRITE: wants all parts of a table');
  const bench: Bench = {
    rounds,
    sides,
    callSides,
    doors,
    groupSides,
    wants: (run) => profile === undefined || profile === run,
    scaled: (count) => Math.max(1, Math.round(count * settings.scale)),
    profiled: (run, worker, work) => (profile === run ? profiled(worker, `${worker.name} ${run}`, work) : work()),
  };
  const failures: unknown[] = [];
  for (const table of TABLES) {
    const parts = table.parts.filter(({ name }) => only?.includes(name) ?? true);
    const figures: Figure[] = [];
    for (const part of parts) {
      const startedAt = performance.now();
      try {
        const found = await part.run(bench);
        figures.push(...found);
        const seconds = ((performance.now() - startedAt) / 1000).toFixed(0);
        console.log(`${part.name}, ${seconds} s\n${markdown(table, found)}`);
      } catch (error) {
        // the other parts still have something to say
        console.error(`${part.name} failed:`, error);
        failures.push(error);
      }
    }
    if (settings.isWriting && failures.length === 0 && isWhole(table)) await write(table, figures);
  }
  if (failures.length > 0) throw new AggregateError(failures, `${failures.length} parts failed`);
});

async function write(table: Table, figures: readonly Figure[]): Promise<void> {
  await recordEvidence(table.name, figures);
  const rounds = Math.max(...figures.flatMap(({ samples }) => Object.values(samples).map(({ length }) => length)));
  const machine = `Medians of ${rounds} rounds on ${cpus().length} shared cores with Node ${process.version.slice(1)}, made by \`BENCH_WRITE=1 npm run bench\`.`;
  const rows = figures.filter(({ isDetail }) => !isDetail);
  const page = new URL(`../${table.page}`, import.meta.url);
  writeBetweenMarkers(page, table.name, `${machine}\n\n${markdown(table, rows)}`);
}
