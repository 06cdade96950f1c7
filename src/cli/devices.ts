import type { Command } from 'commander';
import type { Device } from '../admission/index.js';
import {
  type AccessOptions,
  allOf,
  confirm,
  known,
  printable,
  printSecret,
  warnOfNew,
  withAccess,
  withConfirmation,
  withDirectory,
} from './directory-access.js';
import { type Format, printRows } from './output.js';

interface Options extends AccessOptions {
  readonly tenant: string;
}

interface CreateOptions extends Options {
  readonly paired: boolean;
  readonly replace?: true;
}

interface RevokeOptions extends Options {
  readonly yes?: true;
}

const COLUMNS = {
  user: 'USER',
  device: 'DEVICE',
  token: 'TOKEN',
  createdAt: 'CREATED',
  pairedAt: 'PAIRED',
  revokedAt: 'REVOKED',
};

export function addDevices(root: Command): void {
  const devices = root.command('devices').description('devices: their tokens, pairing and revocation');
  inTenant(devices.command('list').description('devices that something is known of'))
    .option('-u, --user <name>', 'of this user only')
    .action(async ({ user, ...options }: Options & { readonly user?: string }) => {
      const rows = await withDirectory(options, (directory) =>
        allOf((page) => directory.listDevices(options.tenant, { ...page, user })),
      );
      print(rows, options.output);
    });
  inTenant(devices.command('create <user> <device>').description('create a device and print its token, this once'))
    .option('--no-paired', 'it is to be paired later')
    .option('--replace', 'a token that it has stops to be good')
    .action(async (user: string, device: string, options: CreateOptions) => {
      const { tenant, paired: isPaired, replace: isReplacing } = options;
      const made = await withDirectory(options, (directory) =>
        directory.createDevice({ tenant, user, device, isPaired, isReplacing }),
      );
      printSecret(made.token, made, options.output);
    });
  inTenant(
    devices
      .command('pair <user> <device>')
      .description('pair a device: at its limits it waits for seconds, not for minutes'),
  ).action(async (user: string, device: string, options: Options) => {
    const { isNew: _, ...row } = await withDirectory(options, (directory) =>
      directory.pairDevice({ tenant: options.tenant, user, device }),
    );
    print([row], options.output);
  });
  inTenant(devices.command('unpair <user> <device>').description('undo the pairing')).action(
    async (user: string, device: string, options: Options) => {
      const name = { tenant: options.tenant, user, device };
      const row = await withDirectory(options, (directory) => directory.unpairDevice(name));
      print([known(row, textOf(user, device))], options.output);
    },
  );
  withConfirmation(
    inTenant(
      devices.command('revoke <user> <device>').description('close its connection and refuse its tokens, for good'),
    ),
  ).action(async (user: string, device: string, options: RevokeOptions) => {
    const { tenant, yes, output } = options;
    confirm(yes, `revoke ${textOf(user, device)} in tenant ${JSON.stringify(tenant)}`);
    const { isNew, ...row } = await withDirectory(options, (directory) =>
      directory.revokeDevice({ tenant, user, device }),
    );
    print([row], output);
    warnOfNew(isNew, textOf(user, device));
  });
}

function inTenant(command: Command): Command {
  return withAccess(command.option('-t, --tenant <name>', 'tenant', 'default'));
}

function textOf(user: string, device: string): string {
  return `device ${JSON.stringify(device)} of ${JSON.stringify(user)}`;
}

function print(rows: readonly Device[], output: Format): void {
  const shown = rows.map(printable);
  if (output === 'json') printRows(shown, COLUMNS, output);
  else
    printRows(
      shown.map((row) => ({ ...row, token: row.hasToken ? 'own' : 'issuer' })),
      COLUMNS,
      output,
    );
}
