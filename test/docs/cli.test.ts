import { expect, test } from 'vitest';
import { runHere } from '../cli/run-here.js';
import { read } from './markdown.js';

/** A command's help as a pipe gets it, and the commands below it. */
async function helpOf(command: readonly string[]): Promise<{ text: string; below: string[] }> {
  const { out } = await runHere([...command, '--help']);
  const text = out
    .split('\n')
    .map((line) => line.trimEnd())
    .join('\n');
  const list = /\nCommands:\n([\s\S]*)$/.exec(text)?.[1] ?? '';
  const below = [...list.matchAll(/^ {2}([a-z-]+)/gm)].map((match) => match[1] as string);
  return { text, below: below.filter((name) => name !== 'help') };
}

async function allHelp(command: readonly string[] = []): Promise<Map<string, string>> {
  const { text, below } = await helpOf(command);
  const found = new Map([[['holdfast', ...command].join(' '), text]]);
  for (const name of below) for (const [title, help] of await allHelp([...command, name])) found.set(title, help);
  return found;
}

test('docs/cli.md has the help of every command, as the command prints it', async () => {
  const sections = read('docs/cli.md').matchAll(/^## `(holdfast[a-z -]*)`\n\n```text\n([\s\S]*?)```/gm);
  const documented = Object.fromEntries([...sections].map((match) => [match[1] as string, match[2] as string]));
  expect(documented).toEqual(Object.fromEntries(await allHelp()));
});
