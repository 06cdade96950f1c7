/** `[name, value, …]` as Redis answers XINFO. */
export function fieldsOf(fields: readonly unknown[]): Readonly<Record<string, unknown>> {
  const entries: [string, unknown][] = [];
  for (let at = 0; at + 1 < fields.length; at += 2) entries.push([String(fields[at]), fields[at + 1]]);
  return Object.fromEntries(entries);
}

/** For what asks a stream or group that may not be there. Whatever else goes wrong is thrown. */
export function orNothing(error: unknown): never[] {
  if (error instanceof Error && /^(ERR no such key|NOGROUP)/.test(error.message)) return [];
  throw error;
}
