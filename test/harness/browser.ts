import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Browser, chromium } from 'playwright-core';
import { build, type Rollup } from 'vite';
import { fetchFromApt } from '../../src/embedded/apt.js';
import { isThere } from '../../src/embedded/private-file.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
/** Where systems have it; Ubuntu's `chromium` package is a snap, and brings no program. */
const USUAL_PLACES = [
  '/usr/bin/chromium',
  '/usr/bin/google-chrome-stable',
  '/usr/bin/google-chrome',
  '/opt/google/chrome/chrome',
];

/**
 * Chromium without a window: `CHROMIUM_PATH`, the machine's own, or Debian's, unpacked into `.cache/` without installing it
 * (400 MB, a quarter of a minute).
 */
export async function startBrowser(): Promise<Browser> {
  const { path, env } = await find();
  return chromium.launch({
    executablePath: path,
    env: { ...process.env, ...env } as Record<string, string>,
    // root has no sandbox, and the pages are our own
    args: ['--no-sandbox'],
  });
}

async function find(): Promise<{ path: string; env: Readonly<Record<string, string>> }> {
  const { CHROMIUM_PATH: chosen } = process.env;
  if (chosen) return { path: chosen, env: {} };
  for (const path of USUAL_PLACES) if (await isThere(path)) return { path, env: {} };
  const { root, env } = await fetchFromApt(['chromium', 'chromium-common'], join(ROOT, '.cache', 'chromium'));
  // `usr/bin/chromium` is a script that knows only the system's own place
  const path = join(root, 'usr/lib/chromium/chromium');
  if (!(await isThere(path)))
    throw new Error('no Chromium: the package of this system is none; set CHROMIUM_PATH to one, such as Google Chrome');
  const folders = env.LD_LIBRARY_PATH.split(':');
  const libraries = [...folders, ...folders.map((folder) => join(folder, 'pulseaudio'))].join(':');
  return { path, env: { ...env, LD_LIBRARY_PATH: libraries, FONTCONFIG_PATH: join(root, 'etc/fonts') } };
}

/** A module and all that it imports, as one minified file for browsers. `external` packages stay imports. */
export async function bundle(entry: string, external: readonly (string | RegExp)[] = []): Promise<Rollup.OutputChunk> {
  const output = (await build({
    configFile: false,
    logLevel: 'error',
    root: ROOT,
    build: {
      write: false,
      target: 'es2022',
      minify: true,
      modulePreload: false,
      // as an application has it: Vite's library mode leaves the whitespace in
      rollupOptions: {
        input: join(ROOT, entry),
        external: [...external],
        preserveEntrySignatures: 'strict',
        output: { format: 'es' },
      },
    },
  })) as Rollup.RollupOutput;
  const [chunk, ...more] = output.output;
  if (more.length > 0) throw new Error(`${entry} gave ${more.length} files more than one`);
  return chunk;
}

const PAGE = `<!doctype html><title>client</title>
<script type="module">import * as sdk from '/client.js'; Object.assign(globalThis, { sdk });</script>`;

/** Serves a page that loads a module, whose exports are `globalThis.sdk`. */
export class PageServer implements AsyncDisposable {
  constructor(
    readonly url: string,
    private readonly server: Server,
  ) {}

  async stop(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

export async function servePage(script: string): Promise<PageServer> {
  const server = createServer(({ url }, response) => {
    const isScript = url === '/client.js';
    response.setHeader('content-type', isScript ? 'text/javascript' : 'text/html');
    response.end(isScript ? script : PAGE);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return new PageServer(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`, server);
}
