/** Curves drawn by uPlot, with a tip at the pointer and a legend that a keyboard can use. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import "./chart.css";
import { useThemeChanges } from "../shell/theme";
import { readColours } from "./chart_colours";
import { ChartFrame, useFullScreen } from "./chart_frame";
import { LINE_WIDTH, plotOptions, seriesOf, type Drawing } from "./chart_options";
import { ChartTip, type Pointed } from "./chart_tip";
import { columnName, layersOf, type Curve } from "./curve";
import { curvePicture, type Explanation } from "./curve_picture";
import { CurveLegend, CurveTable } from "./curve_legend";
import { doInTurn } from "./in_turn";
import { joinCurves, type Columns } from "./joining";
import { nearestPoint } from "./nearest_point";
import type { Picture } from "./picture";
import { curvesCsv } from "./save_chart";
import { timeRange, X_TITLES, type XUnit } from "./x_axis";

export type { Curve } from "./curve";

interface Props extends Explanation {
  label: string;
  curves: Curve[];
  isLog: boolean;
  yLabel: string;
  /** What the points lie over; times are in seconds. */
  xUnit?: XUnit;
  /** The title of the horizontal axis, for places that are no unit of training. */
  xTitle?: string;
  /** In pixels. */
  height?: number;
  /** The numbers of the chart; by default a row for each place. */
  csv?: () => string;
}

const HEIGHT = 300;
// How near a curve the pointer has to be, in pixels.
const NEAR = 22;
// Pixels of a full screen that the frame and the legend take.
const FULL_REST = 230;

export function Chart(props: Props) {
  const { label, curves, yLabel, xUnit = "batches", xTitle, csv, scale, note } = props;
  const title = `${yLabel}, ${label}`;
  const plot = useRef<uPlot | null>(null);
  const drawing = useRef<Drawing | null>(null);
  const [isZoomed, setZoomed] = useState(false);
  // All points, and not those of a wide chart's pixels.
  const ownCsv = () => {
    const layers = layersOf(curves);
    const ordered = [...layers.filter(({ role }) => role === "main"), ...layers.filter(({ role }) => role !== "main")];
    return curvesCsv(xTitle ?? X_TITLES[xUnit], ordered.map((layer) => columnName(layer, curves)), joinCurves(ordered.map(({ points }) => points), Infinity));
  };
  const picture = (): Picture | null => (plot.current && drawing.current ? curvePicture(plot.current, drawing.current, title, { scale, note }) : null);
  const resetZoom = isZoomed && <button onClick={() => plot.current && showAll(plot.current, xUnit)}>Reset zoom</button>;
  return (
    <ChartFrame name={yLabel} title={title} csv={csv ?? ownCsv} picture={picture} tools={resetZoom}>
      <Plot {...props} plot={plot} drawing={drawing} onZoom={setZoomed} />
      <CurveTable label={title} curves={curves} />
    </ChartFrame>
  );
}

interface PlotProps extends Props {
  plot: { current: uPlot | null };
  drawing: { current: Drawing | null };
  onZoom: (isZoomed: boolean) => void;
}

function Plot({ label, curves, isLog, yLabel, xUnit = "batches", xTitle, height: ownHeight = HEIGHT, plot, drawing, onZoom }: PlotProps) {
  const place = useRef<HTMLDivElement>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [pointed, setPointed] = useState<Pointed | null>(null);
  const [index, setIndex] = useState<number | null>(null);
  const theme = useThemeChanges();
  const isFull = useFullScreen();
  const height = isFull ? Math.max(HEIGHT, innerHeight - FULL_REST) : ownHeight;
  const layers = useMemo(() => layersOf(curves), [curves]);
  // Points that each stand for a trial are all drawn.
  const most = curves.some(({ kind }) => kind === "points") ? Infinity : undefined;
  const columns = useMemo(() => joinCurves(layers.map(({ points }) => points), most), [layers]);
  const data = useMemo(() => (isLog ? withoutNegatives(columns) : columns), [columns, isLog]);
  const shape = JSON.stringify([isLog, yLabel, xUnit, xTitle, curves.map(({ label: name, kind, paint, short, raw, band }) => [name, kind, paint, short, Boolean(raw), Boolean(band)])]);

  const latest = useRef({ data, hidden, curves, height });
  latest.current = { data, hidden, curves, height };

  // A point is not its curve: the other points stay as they are.
  const lit = pointed && curves[pointed.curve]?.kind !== "points" ? pointed.curve : null;

  useEffect(() => {
    const element = place.current!;
    const colours = readColours();
    const first = layers.length - curves.length;
    const onCursor = (made: uPlot) => {
      setIndex(made.cursor.idx ?? null);
      setPointed((before) => keepSame(before, findPointed(made, latest.current.curves, latest.current.hidden, first, xUnit)));
    };
    const resize = () => plot.current?.setSize({ width: element.clientWidth, height: latest.current.height });
    const observer = new ResizeObserver(resize);
    // A view may have many charts.
    const takeBack = doInTurn(() => {
      const made: Drawing = { curves, layers, isLog, yLabel, xUnit, xTitle, height: latest.current.height, colours };
      const shown = plotOptions(made, element, { onCursor, onZoom: (zoomed) => onZoom(isPart(zoomed)) });
      layers.forEach(({ curve }, n) => { shown.series[seriesOf(n)]!.show = !latest.current.hidden.has(curves[curve]!.label); });
      drawing.current = made;
      plot.current = new uPlot(shown, latest.current.data as uPlot.AlignedData, element);
      showPoint(plot.current, xUnit);
      observer.observe(element);
    });
    return () => {
      takeBack();
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
      setPointed(null);
    };
  }, [shape, theme]);
  useEffect(() => {
    if (drawing.current) drawing.current = { ...drawing.current, curves, layers };
    if (plot.current) showData(plot.current, data, xUnit);
  }, [data]);
  useEffect(() => {
    if (plot.current && plot.current.height !== height) plot.current.setSize({ width: place.current!.clientWidth, height });
  }, [height]);
  useEffect(() => {
    const drawn = plot.current;
    if (!drawn) return;
    layers.forEach(({ curve }, n) => {
      const show = !hidden.has(curves[curve]!.label);
      if (drawn.series[seriesOf(n)] && drawn.series[seriesOf(n)]!.show !== show) drawn.setSeries(seriesOf(n), { show });
    });
  }, [hidden]);
  useEffect(() => {
    if (plot.current) lightCurve(plot.current, layers.length - curves.length, lit);
  }, [lit]);

  function toggle(name: string): void {
    const next = new Set(hidden);
    if (!next.delete(name)) next.add(name);
    setHidden(next);
  }
  function openPointed(event: MouseEvent): void {
    const isTouch = (event as PointerEvent).pointerType === "touch";
    // A finger has no way to point before it opens: its first tap shows the tip.
    if (pointed?.href && !(isTouch && Date.now() - pointed.sinceMs < 500)) location.hash = pointed.href;
  }

  return (
    <>
      <div class={`plot${pointed?.href ? " opens" : ""}`} onClick={openPointed}>
        <div ref={place} role="img" aria-label={`${label}: ${curves.length} curves of ${yLabel}`} />
        {pointed && <ChartTip pointed={pointed} yLabel={yLabel} xTitle={xTitle ?? X_TITLES[xUnit]} />}
      </div>
      <CurveLegend curves={curves} hidden={hidden} toggle={toggle} lit={lit} isDark={drawing.current?.colours.isDark ?? readColours().isDark}
        valueOf={(n) => valueAt(columns, layers.length - curves.length + n, index)}
        onPoint={(n) => plot.current && lightCurve(plot.current, layers.length - curves.length, n)} />
    </>
  );
}

/** What the pointer is on; null beside all curves. */
function findPointed(plot: uPlot, curves: readonly Curve[], hidden: ReadonlySet<string>, first: number, xUnit: XUnit): Pointed | null {
  const { left = -1, top = -1, idx } = plot.cursor;
  if (left < 0 || top < 0 || idx === null || idx === undefined) return null;
  const columns = [plot.data[0], ...plot.data.slice(first + 1)] as unknown as Columns;
  const kinds = curves.map(({ label, kind = "line" }) => (hidden.has(label) || kind === "steps" ? null : kind));
  const toX = (x: number) => plot.valToPos(x, "x");
  const toY = (y: number) => plot.valToPos(y, "y");
  const near = nearestPoint(columns, kinds, { toX, toY, left, top }, idx, NEAR);
  if (!near) return null;
  const curve = curves[near.curve]!;
  const [x, y] = [columns[0][near.index]!, columns[near.curve + 1]![near.index] as number];
  const subject = curve.subjectAt ? curve.subjectAt(x) : { label: curve.label, href: curve.href, facts: curve.facts ?? [] };
  return {
    curve: near.curve, x, y, xUnit,
    label: subject?.label ?? curve.label,
    href: subject?.href,
    facts: subject?.facts ?? [],
    left: plot.bbox.left / devicePixelRatio + toX(x),
    top: plot.bbox.top / devicePixelRatio + toY(y),
    width: plot.width,
    sinceMs: Date.now(),
  };
}

/** The former value if it is the same point, so that nothing is drawn again. */
function keepSame(before: Pointed | null, next: Pointed | null): Pointed | null {
  const isSame = before && next && before.curve === next.curve && before.x === next.x && before.left === next.left && before.top === next.top;
  return isSame ? before : next;
}

/** Draw one curve stronger and the others faintly; null draws all alike. */
function lightCurve(plot: uPlot, first: number, curve: number | null): void {
  const lit = curve === null ? null : seriesOf(first + curve);
  plot.series.forEach((series, n) => {
    // Points alone have no line.
    if (n > first && series.width) series.width = n === lit ? 2 * LINE_WIDTH : LINE_WIDTH;
  });
  plot.setSeries(lit, { focus: true });
}

/** Show other data, at the part of it that was zoomed to. */
function showData(plot: uPlot, data: Columns, xUnit: XUnit): void {
  const isZoomed = isPart(plot);
  plot.setData(data as uPlot.AlignedData, !isZoomed);
  if (isZoomed) plot.redraw();
  else showPoint(plot, xUnit);
}

function showAll(plot: uPlot, xUnit: XUnit): void {
  plot.setData(plot.data, true);
  showPoint(plot, xUnit);
}

/** Show the minutes around a single point in time; uPlot's own choice is three years from it. */
function showPoint(plot: uPlot, xUnit: XUnit): void {
  const range = timeRange(plot.data[0], xUnit);
  if (range) plot.setScale("x", range);
}

/** Whether it shows a part of its steps. */
function isPart(plot: uPlot): boolean {
  const steps = plot.data[0];
  const { min, max } = plot.scales["x"]!;
  // Before it was drawn for the first time a scale has no ends.
  const isDrawn = typeof min === "number" && typeof max === "number" && steps.length > 1;
  return isDrawn && (min > steps[0]! || max < steps.at(-1)!);
}

/** The value of a layer below the pointer, or its last one. */
function valueAt(columns: Columns, layer: number, index: number | null): number | null {
  const values = columns[layer + 1] ?? [];
  if (index !== null) return values[index] ?? null;
  return values.findLast((value) => value !== null && value !== undefined) ?? null;
}

function withoutNegatives([steps, ...curves]: Columns): Columns {
  const kept = curves.map((curve) => curve.map((y) => (typeof y === "number" && y <= 0 ? null : y)));
  return [steps, ...kept];
}
