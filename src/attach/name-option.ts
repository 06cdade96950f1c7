import { isName } from '../wire/names.js';

/** @throws {TypeError} in one line */
export function nameOption(forWhom: string, option: string, value: unknown): string {
  if (isName(value)) return value;
  throw new TypeError(`${forWhom}: ${option}: wants 1 to 200 characters without control characters`);
}
