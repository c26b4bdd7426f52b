/** Curves over steps, drawn by uPlot, with a legend of our own that a keyboard can use. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { numberText } from "../parts/format";
import { joinCurves, type Columns } from "./joining";
import { curveColour } from "./palette";
import type { Point } from "./smoothing";

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
  /** Whether steps are seconds since 1970. */
  isTime?: boolean;
}

const HEIGHT = 300;

export function Chart({ label, curves, isLog, yLabel, isTime = false }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [pointed, setPointed] = useState<number | null>(null);
  // Not with every move of the pointer.
  const columns = useMemo(() => joinCurves(curves.map((curve) => curve.points)), [curves]);
  const data = useMemo(() => (isLog ? withoutNegatives(columns) : columns), [columns, isLog]);
  const names = curves.map((curve) => curve.label).join("\n");

  useEffect(() => {
    const element = place.current!;
    const made = new uPlot(options({ label, curves, isLog, yLabel, isTime }, element, setPointed), data as uPlot.AlignedData, element);
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [names, isLog, yLabel]);
  useEffect(() => {
    if (plot.current) showData(plot.current, data);
  }, [data]);
  useEffect(() => {
    curves.forEach((curve, n) => plot.current?.setSeries(n + 1, { show: !hidden.has(curve.label) }));
  }, [hidden, names, isLog, yLabel]);

  function toggle(name: string): void {
    const next = new Set(hidden);
    if (!next.delete(name)) next.add(name);
    setHidden(next);
  }

  return (
    <figure class="chart">
      <div ref={place} role="img" aria-label={`${label}: ${curves.length} curves of ${yLabel}`} />
      <ul class="legend" aria-label="curves">
        {curves.map((curve, n) => (
          <li key={curve.label}>
            <button aria-pressed={!hidden.has(curve.label)} onClick={() => toggle(curve.label)}>
              <svg width="10" height="10" aria-hidden="true"><circle cx="5" cy="5" r="5" fill={curveColour(n)} /></svg>
              {curve.label}
            </button>{" "}
            <span class="value">{numberText(valueAt(columns, n, pointed))}</span>
            {curve.href && <a href={curve.href} aria-label={`open ${curve.label}`}>→</a>}
          </li>
        ))}
      </ul>
    </figure>
  );
}

/** Show other data, at the part of it that was zoomed to. */
function showData(plot: uPlot, data: Columns): void {
  const steps = plot.data[0];
  const { min, max } = plot.scales["x"]!;
  // Before it was drawn for the first time a scale has no ends.
  const isDrawn = typeof min === "number" && typeof max === "number" && steps.length > 1;
  const isZoomed = isDrawn && (min > steps[0]! || max < steps.at(-1)!);
  plot.setData(data as uPlot.AlignedData, !isZoomed);
  if (isZoomed) plot.redraw();
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

function options(
  { curves, isLog, yLabel, isTime = false }: Props,
  element: HTMLElement,
  onPoint: (place: number | null) => void,
): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const stroke = style.getPropertyValue("--quiet");
  const grid = { stroke: style.getPropertyValue("--line"), width: 1 };
  const axis = { stroke, grid, ticks: grid };
  const drawn = curves.map((curve, n) => ({
    label: curve.label,
    stroke: curveColour(n),
    width: 1.5,
    spanGaps: true,
    points: { show: curve.points.length < 30 },
  }));
  return {
    width: element.clientWidth || 600,
    height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: true, y: false } },
    scales: { x: { time: isTime }, y: { distr: isLog ? 3 : 1 } },
    axes: [{ ...axis, label: isTime ? "time" : "steps" }, { ...axis, label: yLabel, size: 70 }],
    series: [{}, ...drawn],
    hooks: { setCursor: [(made) => onPoint(made.cursor.idx ?? null)] },
  };
}
