import type { Page } from './page.js';

/** Offsets that are gone, both ends included. */
export interface Loss {
  readonly from: number;
  readonly to: number;
}

/**
 * What a page that was read behind `after` should hold and doesn't, oldest first: trimmed before it was read, or deleted.
 *
 * @param isPlace `after` is where a reader stood; false: it began there, and misses nothing that is older than the first entry
 */
export function lossesOf(
  { first, holes }: Page,
  after: { readonly offset: number },
  isPlace: boolean,
): readonly Loss[] {
  const trimmed = isPlace && after.offset + 1 < first ? [{ from: after.offset + 1, to: first - 1 }] : [];
  return [...trimmed, ...holes];
}
