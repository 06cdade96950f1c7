import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { recordEvidence } from '../harness/evidence.js';
import { copyTo } from '../harness/pglite.js';
import { startPostgres } from '../harness/postgres.js';
import { migrateTogether, type Round } from './migrating.js';
import { killWhileWriting } from './writing.js';

const ROUNDS = 20;
const STARTS = 8;

it('the schema is made once and all come up: 20 rounds of 8 starts, one of them killed mid-migration', async () => {
  await using server = await startPostgres();
  const [version] = await server.query(`select current_setting('server_version') as is`);
  const rounds: Round[] = [];
  for (let round = 0; round < ROUNDS; round++) rounds.push(await migrateTogether(server, STARTS, true));
  const sum = (field: 'starts' | 'killed' | 'up' | 'appliers'): number =>
    rounds.reduce((total, round) => total + round[field], 0);
  const failures = rounds.flatMap((round) => round.failures);
  const whole = rounds.filter(({ isWhole }) => isWhole).length;
  await recordEvidence('postgres-migrations', {
    postgres: version?.is,
    rounds: ROUNDS,
    starts: sum('starts'),
    killedMidMigration: sum('killed'),
    cameUp: sum('up'),
    applied: sum('appliers'),
    failures: failures.length,
    wholeSchemas: whole,
  });
  expect(failures).toEqual([]);
  for (const round of rounds) expect(round).toMatchObject({ killed: 1, up: STARTS - 1, appliers: 1, isWhole: true });
});

it('a private Postgres loses nothing that was committed: 20 kill -9 of its process', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'holdfast-pglite-'));
  try {
    await copyTo(dir);
    let acknowledged = 0;
    let missing = 0;
    for (let round = 0; round < ROUNDS; round++) {
      const found = await killWhileWriting(dir, 100);
      acknowledged += found.acknowledged;
      missing += Math.max(0, found.acknowledged - found.stored);
    }
    await recordEvidence('postgres-private-kill', { rounds: ROUNDS, acknowledged, missing });
    expect(missing).toBe(0);
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
});
