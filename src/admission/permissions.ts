/** What a token allows, as lists of patterns in which `*` stands for any run of characters. */
export interface Permissions {
  readonly subscribe: readonly string[];
  readonly publish: readonly string[];
  readonly call: readonly string[];
  readonly register: readonly string[];
}

const MAX_PATTERNS = 100;

/** True if `pattern` matches all of `text`. Linear in practice and never exponential: no regular expression is built. */
export function matches(pattern: string, text: string): boolean {
  let p = 0;
  let t = 0;
  let star = -1;
  let resume = 0;
  while (t < text.length) {
    if (pattern[p] === '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.length && pattern[p] === text[t]) {
      p++;
      t++;
    } else if (star >= 0) {
      p = star + 1;
      t = ++resume;
    } else return false;
  }
  while (pattern[p] === '*') p++;
  return p === pattern.length;
}

export function isAllowed(patterns: readonly string[], text: string): boolean {
  return patterns.some((pattern) => matches(pattern, text));
}

/** The claim `caps`, or `undefined` if it is malformed. A missing list means the default, an empty one nothing. */
export function parsePermissions(caps: unknown, defaults: Permissions): Permissions | undefined {
  if (caps === undefined) return defaults;
  if (typeof caps !== 'object' || caps === null || Array.isArray(caps)) return undefined;
  const result: Record<string, readonly string[]> = {};
  for (const kind of ['subscribe', 'publish', 'call', 'register'] as const) {
    const list = Object.hasOwn(caps, kind) ? (caps as Record<string, unknown>)[kind] : undefined;
    if (list === undefined) {
      result[kind] = defaults[kind];
      continue;
    }
    if (!Array.isArray(list) || list.length > MAX_PATTERNS) return undefined;
    if (!list.every((pattern) => typeof pattern === 'string' && pattern.length > 0 && pattern.length <= 1000))
      return undefined;
    result[kind] = list;
  }
  return result as unknown as Permissions;
}
