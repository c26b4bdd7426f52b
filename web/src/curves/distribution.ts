/** The empirical distribution of results. */

/** The share (0 to 1) of the values that are at least as good, at each value, the best first. */
export function distribution(values: readonly number[], smallerIsBetter: boolean): { value: number; share: number }[] {
  const sign = smallerIsBetter ? 1 : -1;
  const sorted = [...values].sort((a, b) => sign * (a - b));
  // Of equal values, the last has the share.
  return sorted.flatMap((value, n) => (sorted[n + 1] === value ? [] : [{ value, share: (n + 1) / sorted.length }]));
}

/** The worst of the best values that are together at least a share of all; null without values. */
export function shareQuantile(points: readonly { value: number; share: number }[], share: number): number | null {
  return points.find((point) => point.share >= share - 1e-12)?.value ?? null;
}
