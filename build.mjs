// Compiles src to dist and copies the Lua scripts beside it. Does nothing where the compiler isn't installed (npm ci --omit=dev).
import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

process.chdir(fileURLToPath(new URL('.', import.meta.url)));
if (!existsSync('node_modules/typescript/bin/tsc')) {
  if (!existsSync('dist'))
    console.error('holdfast: no compiler and no dist folder; install with development dependencies to build');
  process.exit(0);
}
rmSync('dist', { recursive: true, force: true });
execFileSync(process.execPath, ['node_modules/typescript/bin/tsc', '-p', 'tsconfig.build.json'], { stdio: 'inherit' });
cpSync('src', 'dist', { recursive: true, filter: (path) => !path.includes('.') || path.endsWith('.lua') });
