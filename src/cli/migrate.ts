import type { Command } from 'commander';
import { loadToolConfig } from '../config.js';
import { FatalError, RelayError } from '../core/errors.js';
import { type Format, parseFormat, printRows } from './output.js';

interface Options {
  readonly output: Format;
  readonly databaseUrl?: string;
}

/** A job of a deploy runs beside a database that may still be starting. */
const CONNECT_MS = 3000;

export function addMigrate(root: Command): void {
  root
    .command('migrate')
    .description('bring the schema of the Postgres of admission up to date, and print what was applied')
    .option('-o, --output <format>', 'text or json', parseFormat, 'text')
    .option('--database-url <url>', 'the Postgres of admission (DATABASE_URL)')
    .action(async ({ output, databaseUrl }: Options) => {
      const givenAs = databaseUrl === undefined ? undefined : '--database-url';
      const applied = await migrated(urlOf(databaseUrl), givenAs);
      if (applied.length === 0 && output === 'text') process.stdout.write('the schema is up to date\n');
      else
        printRows(
          applied.map((migration) => ({ migration })),
          { migration: 'APPLIED' },
          output,
        );
    });
}

function urlOf(flag: string | undefined): string {
  const config = flag === undefined ? loadToolConfig() : loadToolConfig({ DATABASE_URL: flag }, {});
  if (config.databaseUrl !== undefined) return config.databaseUrl;
  throw new FatalError('say which Postgres with --database-url or DATABASE_URL: a private one migrates at its start');
}

async function migrated(url: string, givenAs: string | undefined): Promise<readonly string[]> {
  // the other commands need no Postgres, and would load its client too
  const { UnreachableError, untilServing } = await import('../postgres/serving.js');
  try {
    return await untilServing({
      url,
      givenAs,
      name: 'holdfast:migrate',
      mayMigrate: true,
      withinMs: CONNECT_MS,
      onRefused: (code, reason) =>
        process.stderr.write(`holdfast: Postgres refuses for now, waiting: ${reason} (${code})\n`),
      onWaiting: () => process.stderr.write('holdfast: another process migrates, waiting for it\n'),
      signal: new AbortController().signal,
    });
  } catch (error) {
    throw error instanceof UnreachableError ? new RelayError('unavailable', error.message, { cause: error }) : error;
  }
}
