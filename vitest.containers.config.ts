import { defineConfig } from 'vitest/config';

/** `npm run test:containers`: the relay's own image and real Redis containers, one file after the other. */
export default defineConfig({
  test: {
    include: ['test/containers/**/*.test.ts'],
    globalSetup: ['test/containers/engine.ts'],
    pool: 'forks',
    fileParallelism: false,
    testTimeout: 120_000,
    hookTimeout: 120_000,
    teardownTimeout: 30_000,
    reporters: ['verbose'],
  },
});
