import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { access, constants, link, mkdir, readdir, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Server } from 'node:net';
import { dirname, join, resolve } from 'node:path';
import { FatalError } from '../core/errors.js';
import { errnoOf, isThere, parseObject, readIfThere } from './private-file.js';

/** Who holds a folder. */
export interface Holder {
  /** Only for people who look for the process: no decision rests on it. */
  readonly pid: number;
  /** A socket on 127.0.0.1 that answers `nonce` for as long as the holder lives. */
  readonly port: number;
  readonly nonce: string;
}

export interface FolderLock {
  release(): void;
}

/** A holder whose loop is busy, or that is stopped, accepts and stays silent: it is alive. */
const ANSWER_MS = 1000;
/** Each try lost means that somebody else got on. */
const TRIES = 50;

/**
 * Makes this process the one holder of `dir`, until `release` or its death, kill -9 included.
 *
 * Proof of life is a loopback socket that answers the nonce in `lock.<n>`: the kernel closes it with the process, and no
 * reused pid can look alive. Taking over is a `link` to `lock.<n+1>`, which is atomic; the highest number is never
 * deleted. It holds among the processes of one network namespace: two containers on one volume don't see each other.
 *
 * @throws {FatalError} when another process holds the folder, or it can't be written
 */
export async function lockFolder(dir: string): Promise<FolderLock> {
  const folder = resolve(dir);
  const nonce = randomBytes(16).toString('hex');
  const guard = await listen(nonce);
  try {
    await makeFolder(folder);
    const { port } = guard.address() as AddressInfo;
    await take(folder, { pid: process.pid, port, nonce });
  } catch (error) {
    guard.close();
    if (errnoOf(error) === undefined) throw error;
    throw new FatalError(
      `${folder} cannot be written (${errnoOf(error)}): set HOLDFAST_DATA_DIR to a folder that can, or REDIS_URL`,
      { cause: error },
    );
  }
  // the file stays: nobody answers for it any more
  return { release: () => void guard.close() };
}

/** The live holder of `dir`, if it has one. */
export async function readHolder(dir: string): Promise<Holder | undefined> {
  const holder = await latest(resolve(dir));
  return holder?.record && (await isAlive(holder.record)) ? holder.record : undefined;
}

/** Not `mkdir` with `recursive`: it tells a read-only disk as ENOENT, and below /proc it never returns. */
async function makeFolder(folder: string): Promise<void> {
  const missing: string[] = [];
  let parent = folder;
  for (; !(await isThere(parent)); parent = dirname(parent)) missing.unshift(parent);
  await access(parent, constants.W_OK);
  for (const path of missing)
    await mkdir(path, { mode: 0o700 }).catch((error: unknown) => {
      // another starter was first
      if (errnoOf(error) !== 'EEXIST') throw error;
    });
}

async function take(folder: string, own: Holder): Promise<void> {
  const draft = join(folder, `.lock-${own.nonce}`);
  await writeFile(draft, JSON.stringify(own), { mode: 0o600 });
  try {
    for (let tries = 0; tries < TRIES; tries++) if (await tryToTake(folder, draft)) return;
  } finally {
    await rm(draft, { force: true });
  }
  throw new FatalError(`${folder}: too many processes start in this folder at once`);
}

async function tryToTake(folder: string, draft: string): Promise<boolean> {
  const holder = await latest(folder);
  if (holder?.record && (await isAlive(holder.record)))
    throw new FatalError(
      `${folder} is in use by process ${holder.record.pid}: stop it, or set HOLDFAST_DATA_DIR to another folder ` +
        `(if no relay runs there, delete ${join(folder, `lock.${holder.number}`)})`,
    );
  const number = (holder?.number ?? 0) + 1;
  try {
    await link(draft, join(folder, `lock.${number}`));
  } catch (error) {
    if (errnoOf(error) === 'EEXIST') return false;
    throw error;
  }
  const numbers = await numbersIn(folder);
  // we were so slow that the number came, died and was deleted meanwhile: the higher one is the lock
  if (numbers.some((other) => other > number)) {
    await rm(join(folder, `lock.${number}`), { force: true });
    return false;
  }
  for (const old of numbers) if (old < number) await rm(join(folder, `lock.${old}`), { force: true });
  return true;
}

/** The highest lock file; `record` is missing when it can't be read, as after a power cut: then nobody holds it. */
async function latest(folder: string): Promise<{ number: number; record: Holder | undefined } | undefined> {
  const number = Math.max(0, ...(await numbersIn(folder)));
  if (number === 0) return undefined;
  const { pid, port, nonce } = parseObject(await readIfThere(join(folder, `lock.${number}`))) ?? {};
  const isWhole = typeof pid === 'number' && typeof port === 'number' && typeof nonce === 'string';
  return { number, record: isWhole ? { pid, port, nonce } : undefined };
}

async function numbersIn(folder: string): Promise<number[]> {
  const names = await readdir(folder).catch((error: unknown) => {
    if (errnoOf(error) === 'ENOENT') return [];
    throw error;
  });
  return names.flatMap((name) => /^lock\.(\d+)$/.exec(name)?.slice(1).map(Number) ?? []);
}

async function listen(nonce: string): Promise<Server> {
  const guard = createServer((socket) => {
    socket.on('error', () => {});
    socket.end(nonce);
  });
  guard.listen(0, '127.0.0.1');
  await once(guard, 'listening');
  guard.unref();
  return guard;
}

function isAlive({ port, nonce }: Holder): Promise<boolean> {
  return new Promise((answer) => {
    let heard = '';
    const socket = connect({ host: '127.0.0.1', port });
    const settle = (isIt: boolean): void => {
      socket.destroy();
      answer(isIt);
    };
    socket.setTimeout(ANSWER_MS, () => settle(true));
    // a free port may be given to this very socket, which then talks to itself
    socket.on('connect', () => socket.localPort === port && settle(false));
    socket.on('data', (chunk) => {
      heard += chunk.toString('latin1');
      if (heard === nonce || !nonce.startsWith(heard)) settle(heard === nonce);
    });
    socket.on('end', () => settle(false));
    socket.on('error', () => settle(false));
  });
}
