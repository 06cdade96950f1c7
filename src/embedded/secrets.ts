import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { FatalError } from '../core/errors.js';
import { parseObject, readIfThere, writePrivate } from './private-file.js';

export interface EmbeddedSecrets {
  /** Verifies and signs tokens with HS256. */
  readonly jwtSecret: string;
  /** Bearer key of the HTTP API, for every tenant. */
  readonly apiKey: string;
}

const fileIn = (dir: string): string => join(dir, 'secrets.json');

/**
 * The secrets of a relay that was given none: made at its first start, the same at every later one. Call it under the
 * folder's lock.
 *
 * @throws {FatalError} when `secrets.json` is there and can't be used: new secrets would throw every client out
 */
export async function embeddedSecrets(dir: string): Promise<EmbeddedSecrets> {
  const known = await readSecrets(dir);
  if (known) return known;
  const made: EmbeddedSecrets = {
    jwtSecret: randomBytes(32).toString('base64url'),
    apiKey: `hf_${randomBytes(32).toString('base64url')}`,
  };
  await writePrivate(fileIn(dir), `${JSON.stringify(made, null, 2)}\n`);
  return made;
}

/** The secrets that a start in this folder made, if there was one. */
export async function readSecrets(dir: string): Promise<EmbeddedSecrets | undefined> {
  const text = await readIfThere(fileIn(dir));
  if (text === undefined) return undefined;
  const { jwtSecret, apiKey } = parseObject(text) ?? {};
  if (typeof jwtSecret !== 'string' || typeof apiKey !== 'string')
    throw new FatalError(`${fileIn(dir)} is damaged: restore it, or delete it to get new secrets`);
  return { jwtSecret, apiKey };
}
