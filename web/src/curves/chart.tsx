/** Curves drawn by uPlot, with a tip at the pointer and a legend that a keyboard can use. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import "./chart.css";
import { useThemeChanges } from "../shell/theme";
import { readColours } from "./chart_colours";
import { ChartFrame, useFullScreen } from "./chart_frame";
import { LINE_WIDTH, plotOptions, seriesOf, type Drawing } from "./chart_options";
import { ChartTip, pointedText, type Pointed } from "./chart_tip";
import { columnName, layersOf, type Curve } from "./curve";
import { curvePicture, type Explanation } from "./curve_picture";
import { CurveLegend, CurveTable } from "./curve_legend";
import { doInTurn } from "./in_turn";
import { joinCurves, type Columns } from "./joining";
import type { Picture } from "./picture";
import { pointAfterKey, reachedPoints } from "./point_keys";
import { PointSlider } from "./point_slider";
import { findKeyed, findPointed, keepSame, pointAt, shownPart, type KeyedPoint } from "./pointed";
import { curvesCsv } from "./save_chart";
import { timeRange, X_TITLES, type XUnit } from "./x_axis";

export type { Curve } from "./curve";

interface Props extends Explanation {
  label: string;
  curves: Curve[];
  isLog: boolean;
  yLabel: string;
  /** The title of the vertical axis; by default `yLabel`. */
  axisTitle?: string;
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

function Plot({ label, curves, isLog, yLabel, axisTitle = yLabel, xUnit = "batches", xTitle, height: ownHeight = HEIGHT, plot, drawing, onZoom }: PlotProps) {
  const place = useRef<HTMLDivElement>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [pointed, setPointed] = useState<Pointed | null>(null);
  const [index, setIndex] = useState<number | null>(null);
  // The point that keys have led to. It stays while values change, until the pointer moves.
  const keyed = useRef<KeyedPoint | null>(null);
  const theme = useThemeChanges();
  const isFull = useFullScreen();
  const height = isFull ? Math.max(HEIGHT, innerHeight - FULL_REST) : ownHeight;
  const layers = useMemo(() => layersOf(curves), [curves]);
  // Points that each stand for a trial are all drawn.
  const hasPoints = curves.some(({ kind }) => kind === "points");
  const most = hasPoints ? Infinity : undefined;
  const columns = useMemo(() => joinCurves(layers.map(({ points }) => points), most), [layers]);
  const data = useMemo(() => (isLog ? withoutNegatives(columns) : columns), [columns, isLog]);
  const shape = JSON.stringify([isLog, axisTitle, xUnit, xTitle, curves.map(({ label: name, kind, paint, short, raw, band }) => [name, kind, paint, short, Boolean(raw), Boolean(band)])]);

  const latest = useRef({ data, hidden, curves, height });
  latest.current = { data, hidden, curves, height };

  // A point is not its curve: the other points stay as they are.
  const lit = pointed && curves[pointed.curve]?.kind !== "points" ? pointed.curve : null;

  useEffect(() => {
    const element = place.current!;
    const colours = readColours();
    const first = layers.length - curves.length;
    const onCursor = (made: uPlot) => {
      const shown = shownPart(made, latest.current.curves, latest.current.hidden, first, xUnit);
      const near = keyed.current ? findKeyed(shown, keyed.current) : findPointed(shown);
      setIndex(keyed.current ? near?.index ?? null : made.cursor.idx ?? null);
      setPointed((before) => keepSame(before, near && pointAt(shown, near)));
    };
    const resize = () => plot.current?.setSize({ width: element.clientWidth, height: latest.current.height });
    const observer = new ResizeObserver(resize);
    // A view may have many charts.
    const takeBack = doInTurn(() => {
      const made: Drawing = { curves, layers, isLog, yLabel: axisTitle, xUnit, xTitle, height: latest.current.height, colours };
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
  function moveByKey(event: KeyboardEvent): void {
    if (event.key === "Enter" && pointed?.href) location.hash = pointed.href;
    if (!plot.current || event.ctrlKey || event.metaKey || event.altKey) return;
    const shown = shownPart(plot.current, curves, hidden, layers.length - curves.length, xUnit);
    const { min = -Infinity, max = Infinity } = plot.current.scales["x"]!;
    const current = keyed.current && findKeyed(shown, keyed.current);
    const next = pointAfterKey(event.key, reachedPoints(shown.columns, shown.kinds, { min, max }), current);
    if (!next) return;
    event.preventDefault();
    keyed.current = { curve: curves[next.curve]!.label, x: shown.columns[0][next.index]! };
    setIndex(next.index);
    setPointed(pointAt(shown, next));
  }
  function leaveKeys(): void {
    if (!keyed.current) return;
    keyed.current = null;
    setPointed(null);
  }
  function openPointed(event: MouseEvent): void {
    const isTouch = (event as PointerEvent).pointerType === "touch";
    // A finger has no way to point before it opens: its first tap shows the tip.
    if (pointed?.href && !(isTouch && Date.now() - pointed.sinceMs < 500)) location.hash = pointed.href;
  }

  return (
    <>
      <div class={`plot${pointed?.href ? " opens" : ""}`} onClick={openPointed} onPointerMove={() => { keyed.current = null; }}>
        <div ref={place} role="img" aria-label={`${label}: ${curves.length} curves of ${yLabel}`} />
        {hasPoints && <PointSlider label={label} curves={curves} pointed={pointed} text={pointed ? pointedText(pointed, yLabel, xTitle ?? X_TITLES[xUnit]) : ""} onKey={moveByKey} onLeave={leaveKeys} />}
        {pointed && <ChartTip pointed={pointed} yLabel={yLabel} xTitle={xTitle ?? X_TITLES[xUnit]} />}
      </div>
      <CurveLegend curves={curves} hidden={hidden} toggle={toggle} lit={lit} isDark={drawing.current?.colours.isDark ?? readColours().isDark}
        valueOf={(n) => valueAt(columns, layers.length - curves.length + n, index)}
        onPoint={(n) => plot.current && lightCurve(plot.current, layers.length - curves.length, n)} />
    </>
  );
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
