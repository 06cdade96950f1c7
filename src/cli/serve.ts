import type { Command } from 'commander';
import { loadConfig } from '../config.js';

interface Options {
  readonly port?: string;
  readonly opsPort?: string;
  readonly redisUrl?: string;
  readonly pod?: string;
}

export function addServe(root: Command): void {
  root
    .command('serve')
    .description('run the relay; without REDIS_URL it brings its own Redis')
    .option('--port <n>', 'public listener (PORT)')
    .option('--ops-port <n>', 'private listener (OPS_PORT)')
    .option('--redis-url <url>', 'the Redis of the log (REDIS_URL)')
    .option('--pod <name>', "this pod's name (HOLDFAST_POD)")
    .action(async ({ port, opsPort, redisUrl, pod }: Options) => {
      const flags = { PORT: port, OPS_PORT: opsPort, REDIS_URL: redisUrl, HOLDFAST_POD: pod };
      const loaded = loadConfig(undefined, flags);
      // what a relay is made of takes longer to load than the other commands take to run
      const { ServeProcess } = await import('./serve-process.js');
      await new ServeProcess(loaded).run();
    });
}
