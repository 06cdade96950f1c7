// Compiles src to dist, copies the Lua scripts beside it, and makes the command one piece: Node takes two thirds of the time of
// a start to find and compile the modules of our dependencies (docs/decisions/0017). Does nothing where the compiler isn't
// installed (npm ci --omit=dev).
import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join, relative, resolve, sep } from 'node:path';
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
  await bundleCommand(resolve(fresh, 'cli'));
  if (existsSync('dist')) renameSync('dist', old);
  renameSync(fresh, 'dist');
} catch (error) {
  console.error(`holdfast: the build failed: ${error.message}`);
  process.exitCode = 1;
} finally {
  rmSync(fresh, { recursive: true, force: true });
  rmSync(old, { recursive: true, force: true });
}

/** Puts the command's modules, with all that they import, into few files in the place of `folder`. */
async function bundleCommand(folder) {
  const { rolldown } = await import('rolldown');
  const bundled = `${folder}-bundled`;
  const bundle = await rolldown({
    input: { main: join(folder, 'main.js') },
    platform: 'node',
    // what brings files that are no modules, and what is optional
    external: ['@electric-sql/pglite', '@fastify/swagger-ui', 'bufferutil', 'utf-8-validate', 'pg-native'],
    plugins: [
      {
        // our modules find their scripts, the migrations and the version beside where they were compiled to
        name: 'own-place',
        transform(code, id) {
          if (id.includes(`${sep}node_modules${sep}`) || !code.includes('import.meta.url')) return null;
          const place = relative(bundled, id).split(sep).join('/');
          return code.replaceAll('import.meta.url', `new URL('${place}', import.meta.url).href`);
        },
      },
    ],
  });
  await bundle.write({ dir: bundled, entryFileNames: '[name].js', chunkFileNames: '[name].js' });
  writeFileSync(join(bundled, 'LICENSES.txt'), licensesOf(await bundle.watchFiles));
  await bundle.close();
  rmSync(folder, { recursive: true });
  renameSync(bundled, folder);
}

/** The licences of the packages that these files are of. */
function licensesOf(files) {
  const packages = new Set(files.map((file) => /^.*node_modules\/(@[^/]+\/)?[^/]+(?=\/)/.exec(file)?.[0]));
  packages.delete(undefined);
  const texts = [...packages].sort().map((folder) => {
    const { name, version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    return `${name} ${version} (${license})\n\n${file ? readFileSync(join(folder, file), 'utf8').trim() : ''}\n`;
  });
  return texts.join(`\n${'-'.repeat(80)}\n\n`);
}
