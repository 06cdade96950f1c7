import { defineConfig } from 'vitest/config';

/** `npm test`: the short form of every promise. Tests start their own servers on free ports, so files run in parallel. */
export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    exclude: ['test/containers/**', 'test/**/*.long.test.ts'],
    pool: 'forks',
    maxWorkers: 2,
    testTimeout: 60_000,
    hookTimeout: 60_000,
    teardownTimeout: 20_000,
    reporters: ['default'],
  },
});
