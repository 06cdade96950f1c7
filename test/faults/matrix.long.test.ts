import { afterAll } from 'vitest';
import { recordEvidence } from '../harness/evidence.js';
import { DATA, SERVING, testGroups } from './matrix.js';
import type { Outcome } from './trial.js';

const outcomes: Outcome[] = [];
testGroups([...SERVING, ...DATA], 'long', (outcome) => outcomes.push(outcome));

afterAll(async () => {
  const scenarios = outcomes.map(({ ledger: { details: _, ...ledger }, ...figures }) => ({ ...figures, ledger }));
  await recordEvidence('fault-matrix', { scenarios });
});
