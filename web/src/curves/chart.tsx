/** Curves over steps, drawn by uPlot, with a legend of our own that a keyboard can use. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { durationText, numberText } from "../parts/format";
import { Table, type Column } from "../parts/table";
import { doInTurn } from "./in_turn";
import { joinCurves, type Columns } from "./joining";
import { curvesCsv, fileName, saveFile, savePicture } from "./save_chart";
import { useThemeChanges } from "../shell/theme";
import { curveColour, curveDashes } from "./palette";
import type { Point } from "./smoothing";
import { timeRange, X_TITLES, type XUnit } from "./x_axis";

export interface Curve {
  label: string;
  points: readonly Point[];
  href?: string;
}

interface Props {
  label: string;
  curves: Curve[];
  isLog: boolean;
  yLabel: string;
  /** What the points lie over; times are in seconds. */
  xUnit?: XUnit;
  /** In pixels. */
  height?: number;
}

const HEIGHT = 300;
// How near a curve the pointer has to be for the others to step back, in pixels.
const NEAR = 24;

export function Chart({ label, curves, isLog, yLabel, xUnit = "batches", height = HEIGHT }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [pointed, setPointed] = useState<number | null>(null);
  const [isZoomed, setZoomed] = useState(false);
  const theme = useThemeChanges();
  // Not with every move of the pointer.
  const columns = useMemo(() => joinCurves(curves.map((curve) => curve.points)), [curves]);
  const data = useMemo(() => (isLog ? withoutNegatives(columns) : columns), [columns, isLog]);
  const names = curves.map((curve) => curve.label).join("\n");

  const latest = useRef({ data, hidden });
  latest.current = { data, hidden };

  useEffect(() => {
    const element = place.current!;
    const heard = { onPoint: setPointed, onZoom: setZoomed };
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
    // A view may have many charts.
    const takeBack = doInTurn(() => {
      const shown = options({ label, curves, isLog, yLabel, xUnit, height }, element, heard);
      curves.forEach((curve, n) => { shown.series[n + 1]!.show = !latest.current.hidden.has(curve.label); });
      plot.current = new uPlot(shown, latest.current.data as uPlot.AlignedData, element);
      showPoint(plot.current, xUnit);
      observer.observe(element);
    });
    return () => {
      takeBack();
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [names, isLog, yLabel, xUnit, theme]);
  useEffect(() => {
    if (plot.current) showData(plot.current, data, xUnit);
  }, [data]);
  useEffect(() => {
    const drawn = plot.current;
    if (!drawn) return;
    curves.forEach((curve, n) => {
      const show = !hidden.has(curve.label);
      if (drawn.series[n + 1] && drawn.series[n + 1]!.show !== show) drawn.setSeries(n + 1, { show });
    });
  }, [hidden]);

  const pictured = curves.flatMap((curve, n) => (hidden.has(curve.label) ? [] : [{ label: curve.label, colour: curveColour(n) }]));
  // All points, and not those of a wide chart's pixels.
  const csv = () => new Blob([curvesCsv(X_TITLES[xUnit], curves.map((curve) => curve.label), joinCurves(curves.map((curve) => curve.points), Infinity))], { type: "text/csv" });

  function toggle(name: string): void {
    const next = new Set(hidden);
    if (!next.delete(name)) next.add(name);
    setHidden(next);
  }

  return (
    <figure class="chart">
      <div ref={place} role="img" aria-label={`${label}: ${curves.length} curves of ${yLabel}`} />
      <div class="tools">
        {isZoomed && <button onClick={() => plot.current && showData(plot.current, data, xUnit, false)}>Reset zoom</button>}
        <button aria-label={`PNG of ${yLabel}`} onClick={() => plot.current && savePicture(plot.current.ctx.canvas, `${yLabel}, ${label}`, pictured)}>PNG</button>
        <button aria-label={`CSV of ${yLabel}`} onClick={() => saveFile(fileName(`${yLabel}, ${label}`, "csv"), csv())}>CSV</button>
      </div>
      <ul class="legend" aria-label="curves">
        {curves.map((curve, n) => (
          <li key={curve.label} onMouseEnter={() => plot.current?.setSeries(n + 1, { focus: true })}
            onMouseLeave={() => plot.current?.setSeries(null, { focus: true })}>
            <button aria-pressed={!hidden.has(curve.label)} title={hidden.has(curve.label) ? "show it" : "hide it"} onClick={() => toggle(curve.label)}>
              <svg width="18" height="8" aria-hidden="true">
                <line x1="0" x2="18" y1="4" y2="4" stroke={curveColour(n)} stroke-width="3" stroke-dasharray={curveDashes(n).join(" ")} />
              </svg>{" "}
              {curve.label}
            </button>{" "}
            <span class="value">{numberText(valueAt(columns, n, pointed))}</span>{" "}
            {curve.href && <a href={curve.href} aria-label={`open ${curve.label}`}>→</a>}
          </li>
        ))}
      </ul>
      <Numbers label={`${yLabel}, ${label}`} curves={curves} />
    </figure>
  );
}

const NUMBERS: Column<Curve>[] = [
  { key: "curve", title: "Curve", show: ({ label, href }) => (href ? <a href={href}>{label}</a> : label), value: ({ label }) => label },
  { key: "points", title: "Points", isNumber: true, show: ({ points }) => points.length, value: ({ points }) => points.length },
  ...(["minimum", "maximum", "latest"] as const).map((which): Column<Curve> => ({
    key: which,
    title: which[0]!.toUpperCase() + which.slice(1),
    isNumber: true,
    show: ({ points }) => numberText(boundOf(points, which)),
    value: ({ points }) => boundOf(points, which),
  })),
];

/** What the curves show, for those who do not see them. */
function Numbers({ label, curves }: { label: string; curves: Curve[] }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>As a table</summary>
      {isOpen && <Table label={`curves of ${label}`} rows={curves} rowKey={(curve) => curve.label} columns={NUMBERS} />}
    </details>
  );
}

function boundOf(points: readonly Point[], which: "minimum" | "maximum" | "latest"): number | null {
  const values = points.flatMap(([, y]) => (y === null ? [] : [y]));
  if (values.length === 0) return null;
  if (which === "latest") return values.at(-1)!;
  return values.reduce((a, b) => (which === "minimum" ? Math.min(a, b) : Math.max(a, b)));
}

/** Show other data, at the part of it that was zoomed to unless that is not to be kept. */
function showData(plot: uPlot, data: Columns, xUnit: XUnit, keepsZoom = true): void {
  const isZoomed = keepsZoom && isPart(plot);
  plot.setData(data as uPlot.AlignedData, !isZoomed);
  if (isZoomed) plot.redraw();
  else showPoint(plot, xUnit);
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

/** The value below the pointer, or a curve's last one. */
function valueAt(columns: Columns, curve: number, pointed: number | null): number | null {
  const values = columns[curve + 1] ?? [];
  if (pointed !== null) return values[pointed] ?? null;
  return values.findLast((value) => value !== null && value !== undefined) ?? null;
}

function withoutNegatives([steps, ...curves]: Columns): Columns {
  const kept = curves.map((curve) => curve.map((y) => (typeof y === "number" && y <= 0 ? null : y)));
  return [steps, ...kept];
}

interface Heard {
  onPoint: (place: number | null) => void;
  onZoom: (isZoomed: boolean) => void;
}

function options(
  { curves, isLog, yLabel, xUnit = "batches", height = HEIGHT }: Props,
  element: HTMLElement,
  { onPoint, onZoom }: Heard,
): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const stroke = style.getPropertyValue("--quiet");
  const grid = { stroke: style.getPropertyValue("--line"), width: 1 };
  const axis = { stroke, grid, ticks: grid };
  const drawn = curves.map((curve, n) => ({
    label: curve.label,
    stroke: curveColour(n),
    width: 1.5,
    dash: [...curveDashes(n)],
    spanGaps: true,
    points: { show: curve.points.length < 30 },
  }));
  return {
    width: element.clientWidth || 600,
    height,
    legend: { show: false },
    cursor: { drag: { x: true, y: false }, focus: { prox: NEAR } },
    focus: { alpha: 0.25 },
    scales: { x: { time: xUnit === "time" }, y: { distr: isLog ? 3 : 1 } },
    axes: [{ ...axis, label: X_TITLES[xUnit], ...(xUnit === "elapsed" && { values: (_: uPlot, ticks: number[]) => ticks.map((seconds) => durationText(1000 * seconds)) }) }, { ...axis, label: yLabel, size: 70 }],
    series: [{}, ...drawn],
    hooks: {
      setCursor: [(made) => onPoint(made.cursor.idx ?? null)],
      setScale: [(made, key) => key === "x" && onZoom(isPart(made))],
    },
  };
}
