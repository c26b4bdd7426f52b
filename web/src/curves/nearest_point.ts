/** The curve that the pointer is on, and its point there. */

import type { Columns } from "./joining";

/** How a curve is drawn: as a line, as steps, or as points alone. */
export type CurveKind = "line" | "steps" | "points";

/** Pixels of places and values, and the pointer in pixels. */
export interface Plane {
  toX: (x: number) => number;
  toY: (y: number) => number;
  left: number;
  top: number;
}

export interface NearPoint {
  /** The number of the curve among those given. */
  curve: number;
  /** The place of its point in the columns. */
  index: number;
}

/**
 * The point of the nearest curve, at most `reach` pixels from the pointer. Lines are also near between
 * their points; the point is then the nearer end. `at` is the place in the columns below the pointer.
 * `kinds` has null for curves that are not looked for.
 */
export function nearestPoint(columns: Columns, kinds: readonly (CurveKind | null)[], plane: Plane, at: number, reach: number): NearPoint | null {
  let found: NearPoint | null = null;
  let least = reach;
  kinds.forEach((kind, curve) => {
    if (kind === null) return;
    const near = kind === "points"
      ? nearestDot(columns, curve, plane, at, least)
      : nearestOnLine(columns, curve, plane, at);
    if (near && near.distance <= least) [found, least] = [{ curve, index: near.index }, near.distance];
  });
  return found;
}

interface Near {
  index: number;
  distance: number;
}

function distanceOf(columns: Columns, curve: number, index: number, { toX, toY, left, top }: Plane): number {
  return Math.hypot(toX(columns[0][index]!) - left, toY(columns[curve + 1]![index] as number) - top);
}

function nearestDot(columns: Columns, curve: number, plane: Plane, at: number, reach: number): Near | null {
  const [steps] = columns;
  const values = columns[curve + 1]!;
  let found: Near | null = null;
  for (const way of [-1, 1]) {
    for (let index = way < 0 ? at : at + 1; index >= 0 && index < steps.length; index += way) {
      if (Math.abs(plane.toX(steps[index]!) - plane.left) > reach) break;
      if (typeof values[index] !== "number") continue;
      const distance = distanceOf(columns, curve, index, plane);
      if (!found || distance < found.distance) found = { index, distance };
    }
  }
  return found;
}

function nearestOnLine(columns: Columns, curve: number, plane: Plane, at: number): Near | null {
  const [steps] = columns;
  const values = columns[curve + 1]!;
  const { toX, toY, left, top } = plane;
  let [before, after] = [at, at];
  while (before >= 0 && !(typeof values[before] === "number" && toX(steps[before]!) <= left)) before -= 1;
  while (after < steps.length && !(typeof values[after] === "number" && toX(steps[after]!) >= left)) after += 1;
  const [hasBefore, hasAfter] = [before >= 0, after < steps.length];
  if (!hasBefore && !hasAfter) return null;
  // Beyond an end of the curve, that end is its nearest point.
  if (!hasBefore) return { index: after, distance: distanceOf(columns, curve, after, plane) };
  if (!hasAfter) return { index: before, distance: distanceOf(columns, curve, before, plane) };
  const [x1, x2] = [toX(steps[before]!), toX(steps[after]!)];
  const [y1, y2] = [toY(values[before] as number), toY(values[after] as number)];
  const share = x2 === x1 ? 0 : (left - x1) / (x2 - x1);
  return { index: share < 0.5 ? before : after, distance: awayFromLine(x1, y1, x2, y2, left, top) };
}

/** The distance of a point from a line between two others. */
function awayFromLine(x1: number, y1: number, x2: number, y2: number, x: number, y: number): number {
  const length = (x2 - x1) ** 2 + (y2 - y1) ** 2;
  const share = length === 0 ? 0 : Math.min(1, Math.max(0, ((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / length));
  return Math.hypot(x1 + share * (x2 - x1) - x, y1 + share * (y2 - y1) - y);
}
