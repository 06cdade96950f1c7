import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';

/** A Lua script, known to Redis by its hash. */
export interface Script {
  readonly name: string;
  readonly source: string;
  readonly sha: string;
}

/**
 * Loads `./lua/<name>.lua` beside the module whose `import.meta.url` is given.
 *
 * @param parts files of local functions beside it, which the script uses
 */
export function loadScript(moduleUrl: string, name: string, parts: readonly string[] = []): Script {
  const read = (file: string): string => readFileSync(new URL(`./lua/${file}.lua`, moduleUrl), 'utf8');
  const source = [...parts, name].map(read).join('\n');
  return { name, source, sha: createHash('sha1').update(source).digest('hex') };
}
