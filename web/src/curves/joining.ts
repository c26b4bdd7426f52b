/** Curves of different steps as columns over all of their steps, as the charts take them. */

import type { Point } from "./smoothing";

export type Columns = [number[], ...(number | null | undefined)[][]];

/** The columns: undefined where a curve has no point, null where its value is no number. */
export function joinCurves(curves: readonly (readonly Point[])[]): Columns {
  const steps = [...new Set(curves.flatMap((curve) => curve.map(([x]) => x)))].sort((a, b) => a - b);
  const places = new Map(steps.map((x, place) => [x, place]));
  const columns = curves.map((curve) => {
    const column = new Array<number | null | undefined>(steps.length).fill(undefined);
    for (const [x, y] of curve) column[places.get(x)!] = y !== null && Number.isFinite(y) ? y : null;
    return column;
  });
  return [steps, ...columns];
}

/** The points of an answer's `points`, without what is no number. */
export function toPoints(raw: readonly (readonly unknown[])[]): Point[] {
  return raw.map(([x, y]) => [Number(x), typeof y === "number" ? y : null]);
}
