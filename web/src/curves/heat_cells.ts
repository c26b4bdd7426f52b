/** Trials in the cells of a plane of two hyperparameters. */

import { axisPlaces, type Axis } from "./axes";

export interface PlanePoint {
  key: number;
  x: unknown;
  y: unknown;
  metric: number;
}

export interface HeatCell {
  column: number;
  row: number;
  points: PlanePoint[];
  mean: number;
}

export interface HeatCells {
  columns: Bins;
  rows: Bins;
  /** The cells that have points; those of the lowest values of y are in row 0. */
  cells: HeatCell[];
}

/** The bins of an axis, with what is written beside each. */
export interface Bins {
  count: number;
  isLog: boolean;
  label: (bin: number) => string;
}

const BINS_MAX = 12;

/**
 * The points by cells: of numbers so many bins of one size on the axis's scale that a point has
 * about a cell of its own (the root of their number, 2 to 12), of other values one bin each. `isLog` has
 * the axes whose numbers lie on a logarithmic scale.
 */
export function heatCells(points: readonly PlanePoint[], text: (value: unknown) => string, isLog: { x?: boolean; y?: boolean } = {}): HeatCells {
  const [xs, ys] = [axisPlaces(points.map(({ x }) => x), isLog.x), axisPlaces(points.map(({ y }) => y), isLog.y)];
  const most = Math.max(2, Math.min(BINS_MAX, Math.round(Math.sqrt(points.length))));
  const [columns, rows] = [axisBins(xs, most, text), axisBins(ys, most, text)];
  const cells = new Map<string, HeatCell>();
  for (const point of points) {
    const [column, row] = [binOf(xs, columns.count, point.x), binOf(ys, rows.count, point.y)];
    const key = `${column} ${row}`;
    const cell = cells.get(key) ?? { column, row, points: [], mean: 0 };
    cell.points.push(point);
    cells.set(key, cell);
  }
  for (const cell of cells.values()) {
    cell.mean = cell.points.reduce((sum, { metric }) => sum + metric, 0) / cell.points.length;
  }
  return { columns, rows, cells: [...cells.values()].sort((a, b) => a.row - b.row || a.column - b.column) };
}

function isNumeric({ ends }: Axis): boolean {
  return ends.every((end) => typeof end === "number");
}

function axisBins(axis: Axis, most: number, text: (value: unknown) => string): Bins {
  const { ends, isLog } = axis;
  if (!isNumeric(axis)) return { count: ends.length, isLog, label: (bin) => text(ends[bin]) };
  if (ends.length === 1) return { count: 1, isLog, label: () => text(ends[0]) };
  const [low, high] = ends as [number, number];
  const at = (place: number): number => (isLog ? low * (high / low) ** place : low + place * (high - low));
  return { count: most, isLog, label: (bin) => `${text(at(bin / most))} to ${text(at((bin + 1) / most))}` };
}

/** The bin of a value; the greatest one of an axis is in the last. */
function binOf(axis: Axis, count: number, value: unknown): number {
  const place = axis.place(value) ?? 0;
  if (count === 1) return 0;
  return isNumeric(axis) ? Math.min(count - 1, Math.floor(place * count)) : Math.round(place * (count - 1));
}
