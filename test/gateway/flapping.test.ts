import { test } from 'vitest';
import { flap } from './flap.js';

test('clients that flap within milliseconds, between pods, in the middle of handshakes, lose and double nothing', () =>
  flap({ runMs: 10_000 }));
