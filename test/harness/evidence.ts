import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { fileURLToPath } from 'node:url';
import { binary } from './binaries.js';

const FOLDER = fileURLToPath(new URL('../../docs/evidence/', import.meta.url));

function git(...args: string[]): string {
  return execFileSync('git', args, { cwd: FOLDER, encoding: 'utf8' }).trim();
}

/** Keeps the figures of a full run with what they were measured on: `docs/evidence/<name>.json`. */
export async function recordEvidence(name: string, figures: object): Promise<void> {
  mkdirSync(FOLDER, { recursive: true });
  const { path, env } = await binary('redis-server');
  const redis = execFileSync(path, ['--version'], { encoding: 'utf8', env: { ...process.env, ...env } });
  const record = {
    name,
    commit: git('rev-parse', 'HEAD'),
    isDirty: git('status', '--porcelain', '--', ':/src', ':/test') !== '',
    at: new Date().toISOString(),
    machine: { cores: cpus().length, cpu: cpus()[0]?.model, node: process.version, redis: /v=(\S+)/.exec(redis)?.[1] },
    figures,
  };
  const text = `${JSON.stringify(record, null, 2)}\n`;
  writeFileSync(`${FOLDER}${name}.json`, text);
  console.log(text);
}
