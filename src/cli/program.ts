import { Command } from 'commander';
import { VERSION } from '../version.js';
import { addCheck } from './check.js';
import { addDevices } from './devices.js';
import { addDlq } from './dlq.js';
import { addGroups } from './groups.js';
import { addKeys } from './keys.js';
import { addMigrate } from './migrate.js';
import { failWith } from './output.js';
import { addPublish } from './publish.js';
import { addReplay } from './replay.js';
import { addRpc } from './rpc.js';
import { addServe } from './serve.js';
import { addTail } from './tail.js';
import { addTenants } from './tenants.js';
import { addToken } from './token.js';
import { addTopics } from './topics.js';

/** Every command of `holdfast`, for the process and for the test that compares the help with the docs. */
export function program(): Command {
  const root = new Command('holdfast')
    .description('A durable event relay for Socket.IO back ends.')
    .version(VERSION)
    .showHelpAfterError('(holdfast --help lists the commands, holdfast <command> --help what each takes)')
    .hook('preAction', (_, command) => {
      const isServing = command.name() === 'serve';
      onStdoutError(isServing);
      if (!isServing) endOnSignals();
    });
  const commands = [addServe, addToken, addCheck, addPublish, addTail, addReplay, addRpc, addTopics, addGroups, addDlq];
  for (const add of [...commands, addMigrate, addTenants, addDevices, addKeys]) add(root);
  return root;
}

/** As the first process of a container, nothing ends one that doesn't listen. */
function endOnSignals(): void {
  process.once('SIGTERM', () => process.exit(143));
  process.once('SIGINT', () => process.exit(130));
}

/** `head` has read enough: a command ends without a word, and a relay serves on. */
function onStdoutError(isServing: boolean): void {
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (isServing) return;
    if (error.code === 'EPIPE') process.exit(0);
    failWith(error);
  });
}
