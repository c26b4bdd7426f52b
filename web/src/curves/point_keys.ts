/** The points of a chart that arrow keys reach, and the point that a key leads to. */

import type { Columns } from "./joining";
import type { CurveKind, NearPoint } from "./nearest_point";

/** The shown part of the horizontal axis. */
export interface Shown {
  min: number;
  max: number;
}

/** The points in the shown part, for each curve of points. `kinds` has null for hidden curves. */
export function reachedPoints(columns: Columns, kinds: readonly (CurveKind | null)[], { min, max }: Shown): NearPoint[][] {
  const [steps] = columns;
  return kinds.flatMap((kind, curve) => {
    if (kind !== "points") return [];
    const values = columns[curve + 1]!;
    const points = steps.flatMap((step, index) => (step >= min && step <= max && typeof values[index] === "number" ? [{ curve, index }] : []));
    return points.length ? [points] : [];
  });
}

/**
 * The point that a key leads to: Left and Right to the neighbour, Home and End to the ends, Up and Down to
 * the nearest point of another curve. Null for other keys, and if no point is there.
 */
export function pointAfterKey(key: string, reached: readonly NearPoint[][], current: NearPoint | null): NearPoint | null {
  const row = reached.findIndex((points) => points[0]!.curve === current?.curve);
  const points = reached[Math.max(0, row)];
  if (!points) return null;
  const place = row < 0 ? -1 : points.findIndex(({ index }) => index === current!.index);
  if (key === "Home" || (key === "ArrowRight" && place < 0)) return points[0]!;
  if (key === "End" || (key === "ArrowLeft" && place < 0)) return points.at(-1)!;
  if (key === "ArrowRight") return points[Math.min(points.length - 1, place + 1)]!;
  if (key === "ArrowLeft") return points[Math.max(0, place - 1)]!;
  if (key !== "ArrowUp" && key !== "ArrowDown") return null;
  const other = place < 0 ? points : reached[row + (key === "ArrowUp" ? -1 : 1)];
  if (!other) return current;
  const at = current?.index ?? 0;
  return other.reduce((best, one) => (Math.abs(one.index - at) < Math.abs(best.index - at) ? one : best));
}
