/** A curve of a chart, and the layers in which a chart draws its curves. */

import { curveColour, curveDashes } from "./palette";
import { scaleColour } from "./colour_scale";
import type { CurveKind } from "./nearest_point";
import type { QuantileBand } from "./quantile_band";
import type { Point } from "./smoothing";

/** A fact about a trial, such as a hyperparameter and its value as text. */
export type Fact = readonly [name: string, text: string];

/** What a point stands for, where each point of a curve is a trial. */
export interface PointSubject {
  label: string;
  href: string;
  facts: readonly Fact[];
}

/** A colour by a place on the scale of values (0 to 1), or by the number of a group. */
export type Paint = { scale: number } | { group: number };

export interface Curve {
  label: string;
  points: readonly Point[];
  href?: string;
  /** The text at the curve's end; no text by default. */
  short?: string;
  /** What the tip says below the value. */
  facts?: readonly Fact[];
  /** The colour; by default that of the curve's place among the others. */
  paint?: Paint;
  /** A line by default. */
  kind?: CurveKind;
  /** The points before they were smoothed, drawn faintly. */
  raw?: readonly Point[];
  /** Quantiles around the curve, which is their median. */
  band?: QuantileBand;
  /** The subject of the point at a place; without it the curve itself is the subject. */
  subjectAt?: (x: number) => PointSubject | undefined;
}

export type Role = "mostLow" | "mostHigh" | "halfLow" | "halfHigh" | "raw" | "main";

/** Points that are drawn together; the layers of a chart are drawn from the first to the last. */
export interface Layer {
  /** The number of the curve. */
  curve: number;
  role: Role;
  points: readonly Point[];
}

/** All layers: those that lie below first, then the curves themselves in their order. */
export function layersOf(curves: readonly Curve[]): Layer[] {
  const below = curves.flatMap(({ band, raw }, curve): Layer[] => [
    ...(band ? [
      { curve, role: "mostLow" as const, points: band.most.low },
      { curve, role: "mostHigh" as const, points: band.most.high },
      { curve, role: "halfLow" as const, points: band.half.low },
      { curve, role: "halfHigh" as const, points: band.half.high },
    ] : []),
    ...(raw ? [{ curve, role: "raw" as const, points: raw }] : []),
  ]);
  return [...below, ...curves.map(({ points }, curve): Layer => ({ curve, role: "main", points }))];
}

/** The bands among the layers: the numbers of the layers of their lower and upper bounds. */
export function bandsOf(layers: readonly Layer[]): { curve: number; low: number; high: number }[] {
  return layers.flatMap(({ curve, role }, n) => (role === "mostLow" || role === "halfLow" ? [{ curve, low: n, high: n + 1 }] : []));
}

export function colourOf({ paint }: Curve, place: number, isDark: boolean): string {
  if (paint && "scale" in paint) return scaleColour(paint.scale, isDark);
  return curveColour(paint ? paint.group : place, isDark);
}

export function dashesOf({ paint, kind }: Curve, place: number): readonly number[] {
  if ((paint && "scale" in paint) || kind === "points") return [];
  return curveDashes(paint ? paint.group : place);
}

/** The names of the columns of a chart's CSV, a column for each layer but the curves first. */
export function columnName({ curve, role }: Layer, curves: readonly Curve[]): string {
  const { label } = curves[curve]!;
  const names: Record<Role, string> = { main: "", raw: " unsmoothed", mostLow: " 10 %", halfLow: " 25 %", halfHigh: " 75 %", mostHigh: " 90 %" };
  return `${label}${names[role]}`;
}
