import type { Command } from 'commander';
import type { Tenant } from '../admission/index.js';
import { parseDuration } from '../core/duration.js';
import { FatalError } from '../core/errors.js';
import { parseFrom } from '../wire/read-from.js';
import {
  type AccessOptions,
  allOf,
  confirm,
  known,
  printable,
  warnOfNew,
  withAccess,
  withConfirmation,
  withDirectory,
} from './directory-access.js';
import { type Format, printRows } from './output.js';

interface RevokeOptions extends AccessOptions {
  readonly user?: string;
  readonly token?: string;
  readonly before?: string;
  readonly keep?: string;
  readonly yes?: true;
}

const COLUMNS = { tenant: 'TENANT', status: 'STATUS', createdAt: 'CREATED', changedAt: 'CHANGED' };

export function addTenants(root: Command): void {
  const tenants = root.command('tenants').description('tenants: create, archive and restore them');
  withAccess(tenants.command('list').description('tenants that something is known of')).action(
    async (options: AccessOptions) => {
      const rows = await withDirectory(options, (directory) => allOf((page) => directory.listTenants(page)));
      print(rows, options.output);
    },
  );
  withAccess(
    tenants.command('create <tenant>').description('create a tenant; one that is active already stays as it is'),
  ).action(async (tenant: string, options: AccessOptions) => {
    const { isNew: _, ...row } = await withDirectory(options, (directory) => directory.createTenant(tenant));
    print([row], options.output);
  });
  withAccess(
    tenants.command('archive <tenant>').description('close all connections of a tenant, and let nobody of it in'),
  ).action(async (tenant: string, options: AccessOptions) => {
    const { isNew, ...row } = await withDirectory(options, (directory) => directory.archiveTenant(tenant));
    print([row], options.output);
    warnOfNew(isNew, `tenant ${JSON.stringify(tenant)}`);
  });
  withAccess(tenants.command('restore <tenant>').description('make an archived tenant active again')).action(
    async (tenant: string, options: AccessOptions) => {
      const row = await withDirectory(options, (directory) => directory.restoreTenant(tenant));
      print([known(row, `tenant ${JSON.stringify(tenant)}`)], options.output);
    },
  );
  withConfirmation(
    withAccess(tenants.command('revoke <tenant>').description("revoke tokens: a user's up to a time, or one token"))
      .option('-u, --user <name>', 'all tokens of this user, also those of its devices')
      .option('--before <when>', 'issued then or before: a time (ISO 8601 or ms) or an age (10m); default: now')
      .option('--token <jti>', 'the token of this jti')
      .option('--keep <duration>', 'forget it after so long, when all of them have expired; default: never'),
  ).action(async (tenant: string, options: RevokeOptions) => {
    const { user, token, yes } = options;
    if ((user === undefined) === (token === undefined)) throw new FatalError('wants one of --user and --token');
    const before = options.before === undefined ? undefined : timeOf(options.before);
    const expiresAt = options.keep === undefined ? undefined : Date.now() + durationOf(options.keep);
    const what = user === undefined ? `the token ${JSON.stringify(token)}` : `the tokens of ${JSON.stringify(user)}`;
    confirm(yes, `revoke ${what} of tenant ${JSON.stringify(tenant)}`);
    await withDirectory(options, (directory) =>
      directory.revokeTokens(
        user === undefined ? { tenant, token: token as string, expiresAt } : { tenant, user, before, expiresAt },
      ),
    );
  });
}

function print(rows: readonly Tenant[], output: Format): void {
  printRows(rows.map(printable), COLUMNS, output);
}

function timeOf(text: string): number {
  const at = parseFrom(text, Date.now());
  if (typeof at === 'object' && !('offset' in at)) return at.ms;
  throw new FatalError(`--before: wants a time (ISO 8601 or ms) or an age (10m), got ${JSON.stringify(text)}`);
}

function durationOf(text: string): number {
  const ms = parseDuration(text);
  if (ms === undefined) throw new FatalError(`--keep: wants a duration such as 30d, got ${JSON.stringify(text)}`);
  return ms;
}
