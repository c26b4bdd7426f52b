/** Many curves as a median with bands of quantiles around it. */

import type { Point } from "./smoothing";

export interface QuantileBand {
  /** Points of the median, then of the bounds of half and of 80 % of the curves. */
  median: Point[];
  half: { low: Point[]; high: Point[] };
  most: { low: Point[]; high: Point[] };
}

const PLACES_MAX = 200;

/**
 * The quantiles of the curves at up to 200 of their places. A curve counts from its first to its last
 * point; between two points its value is interpolated. Places with fewer than `least` curves have none.
 */
export function quantileBand(curves: readonly (readonly Point[])[], least = 3): QuantileBand {
  const known = curves.map((points) => points.filter((point): point is readonly [number, number] => point[1] !== null && Number.isFinite(point[1])));
  const band: QuantileBand = { median: [], half: { low: [], high: [] }, most: { low: [], high: [] } };
  const cursors = known.map(() => 0);
  for (const x of placesOf(known)) {
    const values = known.flatMap((points, n) => {
      while (cursors[n]! + 1 < points.length && points[cursors[n]! + 1]![0] <= x) cursors[n]! += 1;
      const value = valueBetween(points[cursors[n]!], points[cursors[n]! + 1], x);
      return value === null ? [] : [value];
    });
    if (values.length < least) continue;
    values.sort((a, b) => a - b);
    band.median.push([x, quantile(values, 0.5)]);
    band.half.low.push([x, quantile(values, 0.25)]);
    band.half.high.push([x, quantile(values, 0.75)]);
    band.most.low.push([x, quantile(values, 0.1)]);
    band.most.high.push([x, quantile(values, 0.9)]);
  }
  return band;
}

/** The value below which a share of the sorted values lies, interpolated between neighbours. */
export function quantile(sorted: readonly number[], share: number): number {
  const at = share * (sorted.length - 1);
  const below = Math.floor(at);
  const next = sorted[Math.min(below + 1, sorted.length - 1)]!;
  return sorted[below]! + (at - below) * (next - sorted[below]!);
}

function placesOf(curves: readonly (readonly (readonly [number, number])[])[]): number[] {
  const all = [...new Set(curves.flatMap((points) => points.map(([x]) => x)))].sort((a, b) => a - b);
  if (all.length <= PLACES_MAX) return all;
  return Array.from({ length: PLACES_MAX }, (_, n) => all[Math.round((n * (all.length - 1)) / (PLACES_MAX - 1))]!);
}

function valueBetween(from: readonly [number, number] | undefined, to: readonly [number, number] | undefined, x: number): number | null {
  if (!from || from[0] > x) return null;
  if (from[0] === x) return from[1];
  if (!to) return null;
  return from[1] + ((x - from[0]) / (to[0] - from[0])) * (to[1] - from[1]);
}
