// Compiles src to dist and copies the Lua scripts beside it. Does nothing where the compiler isn't installed (npm ci --omit=dev).
import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, renameSync, rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

process.chdir(fileURLToPath(new URL('.', import.meta.url)));
const compiler = 'node_modules/typescript/bin/tsc';
if (!existsSync(compiler)) {
  if (!existsSync('dist'))
    console.error('holdfast: no compiler and no dist folder; install with development dependencies to build');
  process.exit(0);
}
// built beside it and swapped in, so that what runs from dist never finds half of it
const [fresh, old] = [`.dist-new-${process.pid}`, `.dist-old-${process.pid}`];
try {
  execFileSync(process.execPath, [compiler, '-p', 'tsconfig.build.json', '--outDir', fresh], { stdio: 'inherit' });
  cpSync('src', fresh, { recursive: true, filter: (path) => !path.includes('.') || path.endsWith('.lua') });
  if (existsSync('dist')) renameSync('dist', old);
  renameSync(fresh, 'dist');
} catch (error) {
  console.error(`holdfast: the build failed: ${error.message}`);
  process.exitCode = 1;
} finally {
  rmSync(fresh, { recursive: true, force: true });
  rmSync(old, { recursive: true, force: true });
}
