/** Thrown by a handler: the entry was not looked at, and is another's. It is no failure. */
export class GiveBack extends Error {
  override readonly name = 'GiveBack';
}
