const SHAPE =
  /^P(?:(\d+(?:\.\d+)?)W)?(?:(\d+(?:\.\d+)?)D)?(?:T(?=\d)(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?)?$/;
const MS = [7 * 86_400_000, 86_400_000, 3_600_000, 60_000, 1000] as const;

/** `P7D`, `PT15M`, `P1DT12H` as ms. Years and months have no length of their own. */
export function parseIsoDuration(text: string): number | undefined {
  const parts = SHAPE.exec(text.trim())?.slice(1);
  if (!parts?.some((part) => part !== undefined)) return undefined;
  return Math.round(parts.reduce((sum, part, index) => sum + Number(part ?? 0) * (MS[index] as number), 0));
}
