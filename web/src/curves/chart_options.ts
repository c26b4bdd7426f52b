/** How uPlot draws the curves of a chart. */

import uPlot from "uplot";
import type { ChartColours } from "./chart_colours";
import { bandsOf, colourOf, dashesOf, type Curve, type Layer } from "./curve";
import { lastPlace, placeLabels, type EndLabel } from "./end_labels";
import type { Columns } from "./joining";
import { axisTicks, exactNumber, type AxisKind, type Tick } from "./ticks";
import { X_TITLES, type XUnit } from "./x_axis";

export const FONT = "12px system-ui, sans-serif";
export const LINE_HEIGHT = 14;
export const BAND_OPACITY = 0.14;
export const RAW_OPACITY = 0.28;
export const FADED = 0.18;
export const LINE_WIDTH = 1.6;
// A curve of fewer points shows each of them.
export const POINTED_MAX = 30;
const LABEL_WIDTH_MAX = 110;
const GAP = 6;

export interface Drawing {
  curves: readonly Curve[];
  layers: readonly Layer[];
  isLog: boolean;
  yLabel: string;
  xUnit: XUnit;
  /** The title of the horizontal axis; by default that of the unit. */
  xTitle?: string | undefined;
  height: number;
  colours: ChartColours;
}

export interface Heard {
  onCursor: (plot: uPlot) => void;
  onZoom: (plot: uPlot) => void;
}

/** The number in uPlot of a layer. */
export function seriesOf(layer: number): number {
  return layer + 1;
}

export function plotOptions(drawing: Drawing, element: HTMLElement, { onCursor, onZoom }: Heard): uPlot.Options {
  const { curves, layers, colours, isLog, xUnit, yLabel, height } = drawing;
  const grid = { stroke: colours.line, width: 1 };
  const axis = { stroke: colours.quiet, grid, ticks: grid, font: FONT, labelFont: FONT };
  const ticked = (key: "x" | "y"): uPlot.Axis => ({
    splits: (plot) => plotTicks(plot, key, drawing).map(({ at }) => at),
    filter: (_, splits) => splits,
    values: (plot, splits) => {
      const texts = new Map(plotTicks(plot, key, drawing).map(({ at, text }) => [at, text]));
      return splits.map((at) => texts.get(at) ?? exactNumber(at));
    },
  });
  return {
    width: element.clientWidth || 600,
    height,
    padding: [10, labelRoom(curves), 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: true, y: false }, points: { show: false } },
    focus: { alpha: FADED },
    scales: { x: { time: xUnit === "time" }, y: { distr: isLog ? 3 : 1 } },
    axes: [
      { ...axis, ...ticked("x"), label: drawing.xTitle ?? X_TITLES[xUnit], labelSize: 20, size: 30 },
      { ...axis, ...ticked("y"), label: yLabel, labelSize: 22, size: axisSize },
    ],
    bands: bandsOf(layers).map(({ curve, low, high }) => ({
      series: [seriesOf(high), seriesOf(low)] as uPlot.Band.Bounds,
      fill: alphaColour(colourOf(curves[curve]!, curve, colours.isDark), BAND_OPACITY),
    })),
    series: [{}, ...layers.map((layer) => layerSeries(layer, curves, colours))],
    hooks: {
      setCursor: [onCursor],
      setScale: [(plot, key) => { if (key === "x") onZoom(plot); }],
      draw: [(plot) => drawEndLabels(plot, drawing)],
    },
  };
}

function layerSeries({ curve: n, role, points }: Layer, curves: readonly Curve[], { isDark, back }: ChartColours): uPlot.Series {
  const curve = curves[n]!;
  const colour = colourOf(curve, n, isDark);
  const base = { label: `${curve.label} ${role}`, spanGaps: true, points: { show: false } };
  if (role === "raw") return { ...base, stroke: alphaColour(colour, RAW_OPACITY), width: 1 };
  if (role !== "main") return { ...base, width: 0 };
  if (curve.kind === "points") {
    return { ...base, stroke: colour, width: 0, paths: () => null, points: { show: true, size: 7, width: 1, stroke: colour, fill: alphaColour(colour, 0.55) } };
  }
  return {
    ...base,
    stroke: colour,
    width: LINE_WIDTH,
    dash: [...dashesOf(curve, n)],
    points: { show: curve.kind !== "steps" && points.length < POINTED_MAX, size: 5, fill: back },
    ...(curve.kind === "steps" && { paths: uPlot.paths.stepped!({ align: 1 }) }),
  };
}

/** The ticks of an axis as it is shown now. */
export function plotTicks(plot: uPlot, key: "x" | "y", { isLog, xUnit }: Drawing): Tick[] {
  const { min, max } = plot.scales[key]!;
  if (typeof min !== "number" || typeof max !== "number") return [];
  const kind: AxisKind = key === "y" ? (isLog ? "log" : "number") : xUnit === "elapsed" || xUnit === "time" ? xUnit : "number";
  const count = key === "x" ? Math.max(2, plot.width / 110) : Math.max(2, plot.height / 50);
  return axisTicks(kind, min, max, Math.round(count));
}

/** Room for the longest text beside the vertical axis, so that no text is cut. */
function axisSize(plot: uPlot, values: string[] | null): number {
  plot.ctx.font = FONT;
  const widths = (values ?? []).map((text) => plot.ctx.measureText(text).width);
  return Math.ceil(Math.max(20, ...widths)) + 18;
}

/** The room that labels of curves take at the right. */
function labelRoom(curves: readonly Curve[]): number {
  const longest = Math.max(0, ...curves.map(({ short = "" }) => short.length));
  return longest ? Math.min(LABEL_WIDTH_MAX, 7 * longest) + GAP + 4 : 14;
}

/** The labels at the curves' ends that have room, in pixels from the chart's upper left corner. */
export function endLabels(plot: uPlot, curves: readonly Curve[], isShown: (curve: number) => boolean): EndLabel[] {
  const { min, max } = plot.scales["x"]!;
  if (typeof min !== "number" || typeof max !== "number") return [];
  const first = plot.series.length - curves.length;
  const ratio = devicePixelRatio;
  const [left, top] = [plot.bbox.left / ratio, plot.bbox.top / ratio];
  const wanted = curves.flatMap(({ short }, n): (EndLabel & { isLit: boolean })[] => {
    const at = short && isShown(n) ? lastPlace(plot.data as Columns, first + n - 1, min, max) : null;
    if (at === null) return [];
    const [x, y] = [plot.data[0][at]!, plot.data[first + n]![at] as number];
    // The label of a lit curve takes the place of others.
    const isLit = (plot.series[first + n]!.width ?? 0) > LINE_WIDTH;
    return [{ isLit, text: short!, x: left + plot.valToPos(x, "x") + GAP, y: top + plot.valToPos(y, "y") }];
  });
  wanted.sort((a, b) => Number(b.isLit) - Number(a.isLit));
  plot.ctx.font = FONT;
  const box = { right: plot.width - 2, top: 0, bottom: top + plot.bbox.height / ratio + LINE_HEIGHT / 2, lineHeight: LINE_HEIGHT };
  return placeLabels(wanted, (text) => plot.ctx.measureText(text).width, box);
}

function drawEndLabels(plot: uPlot, { curves, colours }: Drawing): void {
  const first = plot.series.length - curves.length;
  const labels = endLabels(plot, curves, (n) => plot.series[first + n]!.show !== false);
  const { ctx } = plot;
  ctx.save();
  ctx.scale(devicePixelRatio, devicePixelRatio);
  ctx.font = FONT;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  ctx.lineJoin = "round";
  for (const { text, x, y } of labels) {
    ctx.strokeStyle = colours.back;
    ctx.lineWidth = 3;
    ctx.strokeText(text, x, y);
    ctx.fillStyle = colours.text;
    ctx.fillText(text, x, y);
  }
  ctx.restore();
}

/** A colour as `#rrggbb` with an opacity. */
export function alphaColour(colour: string, opacity: number): string {
  return `${colour}${Math.round(255 * opacity).toString(16).padStart(2, "0")}`;
}
