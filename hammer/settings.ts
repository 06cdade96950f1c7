/** `HAMMER_<name>`, a number above 0. */
export function setting(name: string, initial: number): number {
  const value = Number(process.env[`HAMMER_${name}`] ?? initial);
  if (!(value > 0)) throw new Error(`HAMMER_${name}: wants a number above 0`);
  return value;
}
