/** Curves of different steps as columns over all of their steps, as the charts take them. */

import type { Point } from "./smoothing";

export type Columns = [number[], ...(number | null | undefined)[][]];

// Columns of more than so many steps are of those alone, as many as a wide chart has pixels.
const STEPS_MAX = 2000;

/**
 * The columns: undefined where a curve has no point, null where its value is no number. Of curves
 * with more than `most` steps in all, each point is at the last of so many steps that is not behind
 * it, and of several there the latest.
 */
export function joinCurves(curves: readonly (readonly Point[])[], most = STEPS_MAX): Columns {
  const all = new Set<number>();
  for (const curve of curves) for (const [x] of curve) all.add(x);
  const steps = thinSteps(Float64Array.from(all).sort(), most);
  const columns = curves.map((curve) => {
    const column = new Array<number | null | undefined>(steps.length).fill(undefined);
    let place = 0;
    for (const [x, y] of curve) {
      if (x < steps[place]!) place = 0;
      while (place + 1 < steps.length && steps[place + 1]! <= x) place += 1;
      column[place] = y !== null && Number.isFinite(y) ? y : null;
    }
    return column;
  });
  return [steps, ...columns];
}

/** At most `most` of the steps, evenly, the first and the last of them among these. */
function thinSteps(sorted: Float64Array, most: number): number[] {
  if (sorted.length <= most) return [...sorted];
  return Array.from({ length: most }, (_, n) => sorted[Math.round((n * (sorted.length - 1)) / (most - 1))]!);
}

/** The points of an answer's `points`, without what is no number. */
export function toPoints(raw: readonly (readonly unknown[])[]): Point[] {
  return raw.map(([x, y]) => [Number(x), typeof y === "number" ? y : null]);
}
