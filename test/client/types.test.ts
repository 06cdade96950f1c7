import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ROOT, read } from '../docs/markdown.js';

/** What the examples take from their application. */
const GIVEN = `
declare const url: string, token: string;
declare function show(text: string): void;
declare function fetchTheStateAnew(): void;
declare function reconcile(reason: string): void;
declare function handle(event: string, data: unknown, id: string): Promise<void>;
declare const log: { warn(error: Error): void };
`;

let app: string;

beforeAll(async () => {
  app = await mkdtemp(join(tmpdir(), 'holdfast-app-'));
  await mkdir(join(app, 'node_modules'));
  await symlink(ROOT, join(app, 'node_modules', 'holdfast'));
});
afterAll(() => rm(app, { recursive: true, force: true }));

/** Of an application for browsers that has neither Node's types nor the newest library. @returns what the compiler says */
async function compile(...sources: readonly string[]): Promise<string> {
  const options = {
    target: 'ES2022',
    lib: ['ES2022', 'DOM'],
    types: [],
    module: 'ESNext',
    moduleResolution: 'Bundler',
    strict: true,
    noEmit: true,
  };
  const files = sources.map((_, index) => `${index}.ts`);
  for (const [index, source] of sources.entries())
    await writeFile(join(app, files[index] as string), `${GIVEN}${source}\nexport {};\n`);
  await writeFile(join(app, 'tsconfig.json'), JSON.stringify({ compilerOptions: options, files }));
  const compiler = join(ROOT, 'node_modules/typescript/bin/tsc');
  return promisify(execFile)(process.execPath, [compiler, '-p', app]).then(
    () => '',
    (error: { stdout?: string }) => error.stdout ?? String(error),
  );
}

test('the examples of docs/sdk.md compile in an application', async () => {
  const examples = [...read('docs/sdk.md').matchAll(/^```ts\n([\s\S]*?)^```/gm)].map((match) => match[1] as string);
  expect(examples).toHaveLength(4);
  expect(await compile(...examples)).toBe('');
});

test('a handler is typed by its params, and a call by its result', async () => {
  const wrong = `
import { createClient } from 'holdfast/client';
const relay = createClient({ url, token });
relay.register('double', ({ n }: { n: number }) => n.length);
const doubled: string = await relay.call<number>('double', { n: 1 });
relay.register('what', (params) => params.n);`;
  const said = await compile(wrong);
  expect(said).toContain(`Property 'length' does not exist on type 'number'`);
  expect(said).toContain(`Type 'number' is not assignable to type 'string'`);
  expect(said).toContain(`'params' is of type 'unknown'`);
});

test('an event that its map does not know does not compile', async () => {
  const wrong = `
import { createClient } from 'holdfast/client';
const relay = createClient<{ message: { text: string } }>({ url, token });
await relay.publish('room', 'shout', { text: 'x' });
relay.subscribe('room', { onEvent: ({ data }) => data.size });`;
  const said = await compile(wrong);
  expect(said).toContain(`"shout"`);
  expect(said).toContain(`Property 'size' does not exist`);
});
