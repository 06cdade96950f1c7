import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';

/** A Lua script, known to Redis by its hash. */
export interface Script {
  readonly name: string;
  readonly source: string;
  readonly sha: string;
}

/** Loads `./lua/<name>.lua` beside the module whose `import.meta.url` is given. */
export function loadScript(moduleUrl: string, name: string): Script {
  const source = readFileSync(new URL(`./lua/${name}.lua`, moduleUrl), 'utf8');
  return { name, source, sha: createHash('sha1').update(source).digest('hex') };
}
