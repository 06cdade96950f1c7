import { defineConfig } from 'vitest/config';

const HOUR_MS = 3_600_000;

/** Runs one after another, each with the machine to itself. */
const alone = {
  pool: 'forks',
  maxWorkers: 1,
  fileParallelism: false,
  testTimeout: HOUR_MS,
  hookTimeout: HOUR_MS,
} as const;

/**
 * `npm test`        short   the short form of every promise; tests start their own servers, so files run in parallel
 * `npm run test:long` long  the full acceptance; writes docs/evidence/
 * `npm run bench`   bench   costs against peers in the same run
 * `npm run hammer`  hammer  fault scenarios for people, set by HAMMER_* variables
 */
export default defineConfig({
  test: {
    reporters: ['default'],
    teardownTimeout: 20_000,
    projects: [
      {
        test: {
          name: 'short',
          include: ['test/**/*.test.ts'],
          exclude: ['test/containers/**', 'test/**/*.long.test.ts'],
          pool: 'forks',
          maxWorkers: 2,
          // against a hang only: each wait has its own deadline, and a hook that starts two stacks has several
          testTimeout: 120_000,
          hookTimeout: 180_000,
        },
      },
      { test: { name: 'long', include: ['test/**/*.long.test.ts'], ...alone } },
      { test: { name: 'bench', include: ['bench/**/*.bench.ts'], ...alone } },
      { test: { name: 'hammer', include: ['hammer/**/*.hammer.ts'], ...alone } },
    ],
  },
});
