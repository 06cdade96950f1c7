/** What an API key may do. */
export const SCOPES = ['publish', 'call', 'read', 'sessions', 'admin'] as const;

export type Scope = (typeof SCOPES)[number];

export function isScope(value: unknown): value is Scope {
  return SCOPES.includes(value as Scope);
}

/** `admin` is about all tenants: a key that is bound to one never has it. */
export function scopesOf(tenant: string | undefined, scopes: readonly unknown[] = SCOPES): ReadonlySet<Scope> {
  return new Set(scopes.filter(isScope).filter((scope) => scope !== 'admin' || tenant === undefined));
}
