/** Curves made calmer or better to compare, point by point. */

export type Point = readonly [x: number, y: number | null];

/**
 * The curve as an exponential moving average. `weight` (0..1) is what the past counts for; the
 * average begins at the first point instead of at 0 (the correction of Adam, Kingma and Ba 2014).
 */
export function smoothCurve(points: readonly Point[], weight: number): Point[] {
  if (weight <= 0) return [...points];
  let sum = 0;
  let correction = 0;
  return points.map(([x, y]) => {
    if (y === null || !Number.isFinite(y)) return [x, y];
    sum = weight * sum + (1 - weight) * y;
    correction = weight * correction + (1 - weight);
    return [x, sum / correction];
  });
}

/** The best value up to each point: the least, or the greatest. */
export function bestSoFar(points: readonly Point[], smallerIsBetter: boolean): Point[] {
  let best: number | null = null;
  return points.map(([x, y]) => {
    const isBetter = best === null || (y !== null && (smallerIsBetter ? y < best : y > best));
    if (y !== null && Number.isFinite(y) && isBetter) best = y;
    return [x, best];
  });
}
