/** The point of a chart that the pointer or a key has chosen. */

import type uPlot from "uplot";
import type { Pointed } from "./chart_tip";
import type { Curve } from "./curve";
import type { Columns } from "./joining";
import { nearestPoint, type CurveKind, type NearPoint } from "./nearest_point";
import type { XUnit } from "./x_axis";

// How near a curve the pointer has to be, in pixels.
const NEAR = 22;

/** A chart as it is shown now. */
export interface ShownPart {
  plot: uPlot;
  curves: readonly Curve[];
  /** The columns of the curves themselves, without the layers below them. */
  columns: Columns;
  /** The kinds of the curves; null for those that no pointer finds. */
  kinds: (CurveKind | null)[];
  xUnit: XUnit;
}

export function shownPart(plot: uPlot, curves: readonly Curve[], hidden: ReadonlySet<string>, first: number, xUnit: XUnit): ShownPart {
  const columns = [plot.data[0], ...plot.data.slice(first + 1)] as unknown as Columns;
  const kinds = curves.map(({ label, kind = "line" }) => (hidden.has(label) || kind === "steps" ? null : kind));
  return { plot, curves, columns, kinds, xUnit };
}

/** A point by the label of its curve and its place, which stay when values are added. */
export interface KeyedPoint {
  curve: string;
  x: number;
}

export function findKeyed({ curves, columns, kinds }: ShownPart, { curve: label, x }: KeyedPoint): NearPoint | null {
  const curve = curves.findIndex((one) => one.label === label);
  const index = columns[0].indexOf(x);
  return kinds[curve] && typeof columns[curve + 1]?.[index] === "number" ? { curve, index } : null;
}

/** What the pointer is on; null beside all curves. */
export function findPointed({ plot, columns, kinds }: ShownPart): NearPoint | null {
  const { left = -1, top = -1, idx } = plot.cursor;
  if (left < 0 || top < 0 || idx === null || idx === undefined) return null;
  const toX = (x: number) => plot.valToPos(x, "x");
  const toY = (y: number) => plot.valToPos(y, "y");
  return nearestPoint(columns, kinds, { toX, toY, left, top }, idx, NEAR);
}

export function pointAt({ plot, curves, columns, xUnit }: ShownPart, near: NearPoint): Pointed {
  const curve = curves[near.curve]!;
  const [x, y] = [columns[0][near.index]!, columns[near.curve + 1]![near.index] as number];
  const subject = curve.subjectAt ? curve.subjectAt(x) : { label: curve.label, href: curve.href, facts: curve.facts ?? [] };
  return {
    curve: near.curve, x, y, xUnit,
    label: subject?.label ?? curve.label,
    href: subject?.href,
    facts: subject?.facts ?? [],
    left: plot.bbox.left / devicePixelRatio + plot.valToPos(x, "x"),
    top: plot.bbox.top / devicePixelRatio + plot.valToPos(y, "y"),
    width: plot.width,
    sinceMs: Date.now(),
  };
}

/** The former value if it is the same point, so that nothing is drawn again. */
export function keepSame(before: Pointed | null, next: Pointed | null): Pointed | null {
  const isSame = before && next && before.curve === next.curve && before.x === next.x && before.left === next.left && before.top === next.top;
  return isSame ? before : next;
}
