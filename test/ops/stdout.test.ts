import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { afterAll, expect, test } from 'vitest';

const LOGGER = new URL('../../dist/ops/logger.js', import.meta.url).href;
const folder = mkdtempSync(join(tmpdir(), 'holdfast-ops-'));
const program = join(folder, 'child.mjs');
const MB = 1024 * 1024;

/**
 * `<mode> <lines>`: logs lines of about 1 KB in batches with a turn of the loop after each, then reports on stderr.
 * flood: waits for SIGTERM, calls process.exit. end: ends by itself. exit: process.exit at once. control: logs nothing.
 */
const CHILD = `
import { createLogger } from '${LOGGER}';
const [mode, count, bufferBytes] = process.argv.slice(2);
let dropped = 0;
const logger = createLogger({ level: 'info', bufferBytes: Number(bufferBytes), base: { pod: 'pod-a' }, onDropped: (n) => { dropped += n; } });
const padding = 'x'.repeat(950);
let maxDelayMs = 0, last = performance.now();
const timer = setInterval(() => { const now = performance.now(); maxDelayMs = Math.max(maxDelayMs, now - last - 10); last = now; }, 10);
const rssAtStart = process.memoryUsage().rss;
process.on('SIGTERM', () => process.exit(0));
const report = () => process.stderr.write(JSON.stringify({ dropped, maxDelayMs, rssGrowth: process.memoryUsage().rss - rssAtStart }) + '\\n');
const log = mode === 'control' ? (fields) => JSON.stringify(fields) : (fields) => logger.info(fields, 'line');
for (let i = 0; i < Number(count);) {
  for (const end = Math.min(i + 100, Number(count)); i < end; i++) log({ i, padding });
  if (mode !== 'exit') await new Promise((resolve) => setImmediate(resolve));
}
if (mode === 'exit') process.exit(0);
if (mode === 'flush') { await logger.flush(); process.exit(0); }
await new Promise((resolve) => setTimeout(resolve, 30));
report();
if (mode === 'end') clearInterval(timer);
`;

writeFileSync(program, CHILD);

const children = new Set<ChildProcess>();

afterAll(() => {
  for (const child of children) child.kill('SIGKILL');
  rmSync(folder, { recursive: true });
});

interface Report {
  readonly dropped: number;
  readonly maxDelayMs: number;
  readonly rssGrowth: number;
}

function run(mode: string, lines: number, stdout: 'pipe' | number, bufferBytes = MB): ChildProcess {
  const child = spawn(process.execPath, [program, mode, String(lines), String(bufferBytes)], {
    stdio: ['ignore', stdout, 'pipe'],
  });
  children.add(child);
  child.once('exit', () => children.delete(child));
  return child;
}

async function reportOf(child: ChildProcess): Promise<Report> {
  const [chunk] = (await once(child.stderr as Socket, 'data')) as [Buffer];
  return JSON.parse(chunk.toString()) as Report;
}

async function exitOf(child: ChildProcess): Promise<number | null> {
  const [code] = (await once(child, 'exit')) as [number | null];
  return code;
}

/** Both ends of a pipe such as a shell or a container runtime makes; `spawn` itself makes sockets. */
function pipe(): { readonly reader: number; readonly writer: number } {
  const path = join(folder, `pipe-${Math.random()}`);
  execFileSync('mkfifo', [path]);
  const reader = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  return { reader, writer: openSync(path, constants.O_WRONLY) };
}

/** Reads a pipe to its end. */
function readAll(reader: number): Promise<string> {
  return text(new Socket({ fd: reader, readable: true, writable: false }));
}

function numbersOf(output: string): number[] {
  return output
    .trimEnd()
    .split('\n')
    .map((line) => (JSON.parse(line) as { i: number }).i);
}

test.each(['pipe', 'socket'])(
  'a %s that nobody reads blocks nothing, costs a bounded memory, and lets go at exit',
  async (kind) => {
    const ends = kind === 'pipe' ? pipe() : undefined;
    const child = run('flood', 50_000, ends?.writer ?? 'pipe');
    const control = run('control', 50_000, 'pipe');
    const [report, calm] = await Promise.all([reportOf(child), reportOf(control)]);
    control.kill('SIGKILL');
    expect(report.maxDelayMs).toBeLessThan(200 + calm.maxDelayMs);
    expect(report.dropped).toBeGreaterThan(45_000);
    expect(report.rssGrowth).toBeLessThan(40 * MB);
    const startedAt = performance.now();
    child.kill('SIGTERM');
    expect(await exitOf(child)).toBe(0);
    expect(performance.now() - startedAt).toBeLessThan(1000);
    if (ends) for (const fd of [ends.reader, ends.writer]) closeSync(fd);
  },
  30_000,
);

test.each(['end', 'flush', 'exit'])(
  'with a reader that reads no line is lost (%s)',
  async (mode) => {
    const { reader, writer } = pipe();
    const child = run(mode, 3000, writer, 16 * MB);
    closeSync(writer);
    const [output, code] = await Promise.all([readAll(reader), exitOf(child)]);
    expect(code).toBe(0);
    expect(numbersOf(output)).toEqual(Array.from({ length: 3000 }, (_, i) => i));
  },
  30_000,
);

test('a reader that comes late gets whole lines, the oldest first', async () => {
  const { reader, writer } = pipe();
  const child = run('end', 3000, writer, MB);
  closeSync(writer);
  const { dropped } = await reportOf(child);
  const [output, code] = await Promise.all([readAll(reader), exitOf(child)]);
  expect(code).toBe(0);
  const numbers = numbersOf(output);
  expect(numbers).toEqual(Array.from({ length: 3000 - dropped }, (_, i) => i));
  expect(dropped).toBeGreaterThan(0);
  expect(output.length).toBeGreaterThan(MB);
}, 30_000);

test('a reader that goes away ends nothing but the lines', async () => {
  const { reader, writer } = pipe();
  const child = run('end', 3000, writer, MB);
  closeSync(writer);
  closeSync(reader);
  const [report, code] = await Promise.all([reportOf(child), exitOf(child)]);
  expect(code).toBe(0);
  expect(report.dropped).toBe(3000);
});

test('a file gets every line, whatever the buffer', async () => {
  const path = join(folder, 'out.log');
  const fd = openSync(path, 'w');
  const child = run('exit', 3000, fd, 1024);
  closeSync(fd);
  expect(await exitOf(child)).toBe(0);
  expect(numbersOf(readFileSync(path, 'utf8'))).toHaveLength(3000);
});
