import { createHash, randomInt } from 'node:crypto';
import { crc32 } from 'node:zlib';

/** Letters and digits alone: a double click selects all of a secret, and no shell or URL needs it quoted. */
const ALPHABET = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
/** 256 bits. */
const SECRET_LENGTH = 43;
const ID_LENGTH = 12;
/** 32 bits. */
const SUM_LENGTH = 6;

const DEVICE_TOKEN = /^hfd_[0-9A-Za-z]{49}$/;
const API_KEY = /^hf_([0-9A-Za-z]{12})_[0-9A-Za-z]{49}$/;

export const DEVICE_TOKEN_PREFIX = 'hfd_';

/** `hfd_<43 characters><sum>` */
export function makeDeviceToken(): string {
  return withSum(`${DEVICE_TOKEN_PREFIX}${letters(SECRET_LENGTH)}`);
}

/** `hf_<id>_<43 characters><sum>`; the id is public, and names the key. */
export function makeApiKey(): { readonly id: string; readonly key: string } {
  const id = letters(ID_LENGTH);
  return { id, key: withSum(`hf_${id}_${letters(SECRET_LENGTH)}`) };
}

/** False for one that was mistyped or cut short, without asking anybody. */
export function isDeviceToken(text: string): boolean {
  return DEVICE_TOKEN.test(text) && hasSum(text);
}

/** The id of a key that `makeApiKey` may have made; `undefined`: it never did, nobody needs to be asked. */
export function idOfApiKey(text: string): string | undefined {
  const id = API_KEY.exec(text)?.[1];
  return id !== undefined && hasSum(text) ? id : undefined;
}

/** What is stored in a secret's place. It has 256 random bits, so that a slow hash would only slow the relay. */
export function sha256(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

function letters(count: number): string {
  return Array.from({ length: count }, () => ALPHABET[randomInt(ALPHABET.length)]).join('');
}

function withSum(text: string): string {
  return text + sumOf(text);
}

function hasSum(text: string): boolean {
  return sumOf(text.slice(0, -SUM_LENGTH)) === text.slice(-SUM_LENGTH);
}

/** A CRC, which proves nothing: whoever can compute it has yet to guess the rest. */
function sumOf(text: string): string {
  let rest = crc32(text);
  let sum = '';
  for (let place = 0; place < SUM_LENGTH; place++) {
    sum = ALPHABET[rest % ALPHABET.length] + sum;
    rest = Math.floor(rest / ALPHABET.length);
  }
  return sum;
}
