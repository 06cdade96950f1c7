// the long form runs for a minute, with faults: flapping.long.test.ts
import { test } from 'vitest';
import { flap } from './flap.js';

test('clients that flap within milliseconds, between pods, in the middle of handshakes, lose and double nothing', () =>
  flap({ runMs: 4000 }));
