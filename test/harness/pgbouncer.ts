import { chmod, rm, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { fetchFromApt } from '../../src/embedded/apt.js';
import { Child } from './child.js';
import { freePort } from './free-port.js';
import { eventually } from './poll.js';
import { asUser, ownFolder, type PostgresProcess } from './postgres.js';

const CACHE = fileURLToPath(new URL('../../.cache/pgbouncer', import.meta.url));

/** Its port. It gives every transaction the next free connection of the server's, as hosted databases do. */
export interface PgBouncer extends AsyncDisposable {
  readonly port: number;
}

export async function startPgBouncer(server: PostgresProcess): Promise<PgBouncer> {
  const { root, env } = await fetchFromApt(['pgbouncer'], CACHE);
  const [port, dir] = await Promise.all([freePort(), ownFolder()]);
  const config = join(dir, 'pgbouncer.ini');
  const settings = {
    listen_addr: '127.0.0.1',
    listen_port: port,
    unix_socket_dir: '',
    auth_type: 'any',
    pool_mode: 'transaction',
    default_pool_size: 5,
  };
  const lines = Object.entries(settings).map(([name, value]) => `${name} = ${value}`);
  await writeFile(config, ['[databases]', `* = ${server.login}`, '[pgbouncer]', ...lines, ''].join('\n'));
  await chmod(config, 0o644);
  const [command, ...args] = asUser([join(root, 'usr/sbin/pgbouncer'), config]);
  const child = new Child(command as string, { args, env: { ...process.env, ...env }, cwd: dir });
  const stop = async (): Promise<void> => {
    await child.kill();
    await rm(dir, { recursive: true, force: true });
  };
  try {
    await eventually(async () => !child.isRunning || (await accepts(port)), { what: 'pgbouncer' });
    if (!child.isRunning) throw new Error(`pgbouncer ended at once:\n${child.tail()}`);
  } catch (error) {
    await stop();
    throw error;
  }
  return { port, [Symbol.asyncDispose]: stop };
}

function accepts(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });
}
