import { constants } from 'node:fs';
import { access } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { fetchFromApt } from '../../src/embedded/apt.js';

export interface Binary {
  readonly path: string;
  /** What the program needs besides the caller's environment: library paths, when it was fetched. */
  readonly env: Readonly<Record<string, string>>;
}

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const USUAL_PLACES = ['/usr/local/bin', '/usr/bin', '/usr/sbin', '/usr/local/sbin', '/sbin'];

/** Program → the Debian packages that bring it, the first of which names the cache folder. */
const PACKAGES = {
  'redis-server': ['redis-server', 'redis-tools'],
  haproxy: ['haproxy'],
  prometheus: ['prometheus'],
  promtool: ['prometheus'],
} as const satisfies Record<string, readonly [string, ...string[]]>;

export type BinaryName = keyof typeof PACKAGES;

const found = new Map<BinaryName, Promise<Binary>>();

/** The program, from this machine or else fetched into `.cache/` without root; looked for once per process. */
export function binary(name: BinaryName): Promise<Binary> {
  const known = found.get(name);
  if (known) return known;
  const search = find(name);
  found.set(name, search);
  search.catch(() => found.delete(name));
  return search;
}

async function find(name: BinaryName): Promise<Binary> {
  const places = [...(process.env.PATH ?? '').split(delimiter).filter((place) => place !== ''), ...USUAL_PLACES];
  for (const place of places) if (await isProgram(join(place, name))) return { path: join(place, name), env: {} };
  return fetched(name);
}

async function fetched(name: BinaryName): Promise<Binary> {
  const packages = PACKAGES[name];
  // atomic: test workers that ask at once all get a whole tree
  const { root, env } = await fetchFromApt([...packages], join(ROOT, '.cache', packages[0]));
  for (const place of ['usr/bin', 'usr/sbin']) {
    const path = join(root, place, name);
    if (await isProgram(path)) return { path, env };
  }
  throw new Error(`${name}: not on this machine, and not in the packages ${packages.join(', ')}`);
}

async function isProgram(path: string): Promise<boolean> {
  return access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
}
