import type { Command } from 'commander';
import { type KeyEntry, SCOPES, type Scope } from '../admission/index.js';
import { parseDuration } from '../core/duration.js';
import { FatalError } from '../core/errors.js';
import {
  type AccessOptions,
  allOf,
  confirm,
  known,
  printable,
  printSecret,
  withAccess,
  withConfirmation,
  withDirectory,
} from './directory-access.js';
import { type Format, printRows } from './output.js';

interface CreateOptions extends AccessOptions {
  readonly scopes: readonly Scope[];
  readonly tenant?: string;
  readonly label?: string;
  readonly ttl?: string;
}

const COLUMNS = {
  id: 'ID',
  tenant: 'TENANT',
  scopes: 'SCOPES',
  label: 'LABEL',
  createdAt: 'CREATED',
  expiresAt: 'EXPIRES',
  revokedAt: 'REVOKED',
};

export function addKeys(root: Command): void {
  const keys = root.command('keys').description('API keys of the database: create, list and revoke them');
  withAccess(keys.command('list').description('API keys, without what is secret of them'))
    .option('-t, --tenant <name>', 'those that are bound to this tenant only')
    .action(async ({ tenant, ...options }: AccessOptions & { readonly tenant?: string }) => {
      const rows = await withDirectory(options, (directory) =>
        allOf((page) => directory.listKeys({ ...page, tenant })),
      );
      print(rows, options.output);
    });
  withAccess(keys.command('create').description('create an API key and print it, this once'))
    .requiredOption('-s, --scopes <scopes...>', `what it may do: ${SCOPES.join(', ')}`)
    .option('-t, --tenant <name>', 'the one tenant that it speaks for; default: all')
    .option('-l, --label <text>', 'for people')
    .option('--ttl <duration>', 'how long it is good: 12h, 90d; default: for ever')
    .action(async ({ scopes, tenant, label, ttl, ...options }: CreateOptions) => {
      const expiresAt = ttl === undefined ? undefined : Date.now() + durationOf(ttl);
      const made = await withDirectory(options, (directory) =>
        directory.createKey({ scopes, tenant, label, expiresAt }),
      );
      printSecret(made.key, made, options.output);
    });
  withConfirmation(withAccess(keys.command('revoke <id>').description('refuse an API key from now on'))).action(
    async (id: string, { yes, ...options }: AccessOptions & { readonly yes?: true }) => {
      confirm(yes, `revoke API key ${JSON.stringify(id)}`);
      const row = await withDirectory(options, (directory) => directory.revokeKey(id));
      print([known(row, `API key ${JSON.stringify(id)}`)], options.output);
    },
  );
}

function print(rows: readonly KeyEntry[], output: Format): void {
  printRows(rows.map(printable), COLUMNS, output);
}

function durationOf(text: string): number {
  const ms = parseDuration(text);
  if (ms !== undefined && ms >= 1000) return ms;
  throw new FatalError(`--ttl: wants a duration such as 12h or 90d, got ${JSON.stringify(text)}`);
}
