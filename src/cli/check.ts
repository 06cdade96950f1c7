import type { Command } from 'commander';
import { loadConfig, printable } from '../config.js';
import { type Format, parseFormat } from './output.js';

export function addCheck(root: Command): void {
  root
    .command('check')
    .description('check the configuration and print what is in force, secrets masked')
    .option('-o, --output <format>', 'text or json', parseFormat, 'text')
    .action(({ output }: { readonly output: Format }) => {
      const { config, warnings } = loadConfig();
      const settings = printable(config);
      if (output === 'json') process.stdout.write(`${JSON.stringify({ settings, warnings }, null, 2)}\n`);
      else
        for (const [name, value] of Object.entries(settings))
          process.stdout.write(`${name}=${value === null ? '' : String(value)}\n`);
      if (output === 'text') for (const warning of warnings) process.stderr.write(`warning: ${warning}\n`);
    });
}
