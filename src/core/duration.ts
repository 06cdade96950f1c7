const UNITS: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** `1500`, `250ms`, `30s`, `5m`, `1h`, `2d` as ms. */
export function parseDuration(text: string): number | undefined {
  const match = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)?$/.exec(text.trim());
  return match ? Math.round(Number(match[1]) * (UNITS[match[2] ?? 'ms'] as number)) : undefined;
}
