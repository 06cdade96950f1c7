import { access, readdir, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { fetchFromApt } from '../../src/embedded/apt.js';

const TREE = fileURLToPath(new URL('../../.cache/libfaketime', import.meta.url));

let clocks = 0;

/** The wall clock of a process that runs with `env`, which can be moved while it runs; its monotonic clock stays. */
export class FakeClock {
  readonly env: Readonly<Record<string, string>>;
  readonly #file: string;

  constructor(library: string, file: string) {
    this.#file = file;
    this.env = {
      LD_PRELOAD: library,
      FAKETIME_TIMESTAMP_FILE: file,
      FAKETIME_CACHE_DURATION: '1', // seconds between two looks into the file
      FAKETIME_DONT_FAKE_MONOTONIC: '1',
    };
  }

  /** Against this machine's clock, from a second later on. */
  async offBy(seconds: number): Promise<void> {
    await writeFile(this.#file, `${seconds < 0 ? '' : '+'}${seconds}s`);
  }
}

/** By libfaketime, fetched into `.cache/` without root. */
export async function startFakeClock(): Promise<FakeClock> {
  const { root } = await fetchFromApt(['libfaketime'], TREE);
  const clock = new FakeClock(await libraryIn(root), join(tmpdir(), `holdfast-clock-${process.pid}-${clocks++}`));
  await clock.offBy(0);
  return clock;
}

async function libraryIn(root: string): Promise<string> {
  for (const folder of await readdir(join(root, 'usr/lib'))) {
    const library = join(root, 'usr/lib', folder, 'faketime/libfaketimeMT.so.1');
    const isThere = await access(library).then(
      () => true,
      () => false,
    );
    if (isThere) return library;
  }
  throw new Error(`${root} holds no libfaketimeMT.so.1`);
}
