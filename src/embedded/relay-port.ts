import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { parseObject, readIfThere, writePrivate } from './private-file.js';

const fileIn = (dir: string): string => join(dir, 'relay.json');

/** Where the relay of this folder listens, for commands beside it: its port may have been set by a flag, or drawn. */
export async function writePort(dir: string, port: number): Promise<void> {
  await writePrivate(fileIn(dir), `${JSON.stringify({ port })}\n`);
}

/** Of a former relay; somebody else may have it by now. */
export async function forgetPort(dir: string): Promise<void> {
  await rm(fileIn(dir), { force: true });
}

export async function readPort(dir: string): Promise<number | undefined> {
  const port = parseObject(await readIfThere(fileIn(dir)))?.port;
  return typeof port === 'number' ? port : undefined;
}
