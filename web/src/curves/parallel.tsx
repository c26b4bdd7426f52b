/**
 * Parallel coordinates: a line for each trial, over an axis for each hyperparameter. Dragging along
 * an axis keeps the trials of a part of it; the fields of `AxisFilters` do the same.
 */

import { useState } from "preact/hooks";
import { axisTexts, type Axis, type AxisRange } from "./axes";
import { useWidth } from "./use_width";

export interface Row {
  key: number;
  href: string;
  label: string;
  values: unknown[];
  /** How good it is, 0 the worst and 1 the best; or how far up the axis that gives the colours. */
  quality: number;
}

interface Props {
  label: string;
  names: string[];
  axes: Axis[];
  rows: Row[];
  /** The rows that the ranges keep. */
  kept: ReadonlySet<number>;
  /** The part of each axis that is kept; undefined for all of it. */
  ranges: (AxisRange | undefined)[];
  onRange: (axis: number, range: AxisRange | null) => void;
}

const [GAP_MIN, GAP_MAX, HEIGHT, TOP, BOTTOM, SIDE] = [190, 420, 280, 30, 20, 95];
// Round numbers beside an axis, and the length of all texts there.
const [TICKS, TEXT_MAX] = [4, 14];
// Lines of one colour are one path: thousands of elements would keep the page busy.
export const BANDS = 12;
const BRUSH = 26;
// A shorter drag takes the part back.
const DRAG_MIN = 4;
// How near a line the pointer has to be, in pixels.
const NEAR = 12;

/** The colour of a band, of 0 to BANDS - 1: from blue to orange, which most can tell apart. */
export function bandColour(band: number): string {
  return `color-mix(in oklab, #d55e00 ${Math.round((100 * band) / (BANDS - 1))}%, #5b8fd6)`;
}

export function Parallel({ label, names, axes, rows, kept, ranges, onRange }: Props) {
  const [drag, setDrag] = useState<{ axis: number; from: number; to: number } | null>(null);
  const [near, setNear] = useState<Row | null>(null);
  const [measured, ref] = useWidth(900);
  // The axes take the width of the window, as far as lines between them can still be followed.
  const gap = Math.min(GAP_MAX, Math.max(GAP_MIN, (measured - 2 - 2 * SIDE) / Math.max(1, names.length - 1)));
  const width = 2 * SIDE + gap * (names.length - 1);
  const toX = (n: number) => SIDE + n * gap;
  const toY = (place: number) => HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM);
  const toPlace = (y: number) => Math.min(1, Math.max(0, (HEIGHT - BOTTOM - y) / (HEIGHT - TOP - BOTTOM)));
  const pathOf = (row: Row) => {
    const points = axes.flatMap((axis, n) => {
      const place = axis.place(row.values[n]);
      return place === null ? [] : [`${toX(n)} ${toY(place).toFixed(1)}`];
    });
    return points.length ? `M${points.join("L")}` : "";
  };
  const bands = Array.from({ length: BANDS }, (): string[] => []);
  const dropped: string[] = [];
  for (const row of rows) {
    if (kept.has(row.key)) bands[Math.min(BANDS - 1, Math.floor(row.quality * BANDS))]!.push(pathOf(row));
    else dropped.push(pathOf(row));
  }
  const opacity = Math.max(0.25, Math.min(0.9, 40 / Math.max(1, kept.size)));

  function startDrag(event: PointerEvent, axis: number): void {
    (event.currentTarget as Element).setPointerCapture(event.pointerId);
    setDrag({ axis, from: event.offsetY, to: event.offsetY });
  }
  function endDrag(): void {
    if (!drag) return;
    setDrag(null);
    const [low, high] = [Math.max(drag.from, drag.to), Math.min(drag.from, drag.to)].map(toPlace) as [number, number];
    const axis = axes[drag.axis]!;
    onRange(drag.axis, Math.abs(drag.from - drag.to) < DRAG_MIN ? null : [axis.value(low), axis.value(high)]);
  }
  function point({ offsetX, offsetY }: PointerEvent): void {
    if (drag) setDrag({ ...drag, to: offsetY });
    else setNear(nearestRow(offsetX, offsetY));
  }
  function nearestRow(x: number, y: number): Row | null {
    const left = Math.max(0, Math.min(axes.length - 2, Math.floor((x - SIDE) / gap)));
    const along = (x - toX(left)) / gap;
    let found: Row | null = null;
    let least = NEAR;
    for (const row of rows) {
      if (!kept.has(row.key)) continue;
      const [a, b] = [axes[left]!.place(row.values[left]), axes[left + 1]?.place(row.values[left + 1]) ?? null];
      if (a === null || b === null) continue;
      const away = Math.abs(toY(a + along * (b - a)) - y);
      if (away < least) [found, least] = [row, away];
    }
    return found;
  }
  function rangeEnds(n: number): [number, number] | null {
    if (drag?.axis === n) return [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
    const range = ranges[n];
    if (!range) return null;
    return [toY(axes[n]!.place(range[1]) ?? 1), toY(axes[n]!.place(range[0]) ?? 0)];
  }

  return (
    <>
      <div class="scroll" role="region" aria-label={label} tabIndex={0} ref={ref}>
        <svg class="parallel" width={width} height={HEIGHT} role="img" aria-label={`${label}: ${kept.size} of ${rows.length} trials`}
          onPointerMove={point} onPointerUp={endDrag} onPointerCancel={() => setDrag(null)} onPointerLeave={() => setNear(null)}
          onClick={(event) => { if (near && !(event.target as Element).classList.contains("brush")) location.hash = near.href; }}>
          <path class="dropped" d={dropped.join("")} />
          {bands.map((paths, band) => <path key={band} d={paths.join("")} stroke={bandColour(band)} stroke-opacity={opacity} />)}
          {near && <path class="near" d={pathOf(near)} />}
          {axes.map((axis, n) => {
            const range = rangeEnds(n);
            return (
              <g key={names[n]}>
                <line x1={toX(n)} x2={toX(n)} y1={TOP} y2={HEIGHT - BOTTOM} class="axis" />
                {range && <rect class="range" x={toX(n) - 8} width={16} y={range[0]} height={Math.max(2, range[1] - range[0])} />}
                <text x={toX(n)} y={14} text-anchor="middle">{names[n]!.slice(0, 22)}{axis.isLog ? " (log)" : ""}</text>
                {axisTexts(axis, TICKS, TEXT_MAX).map(({ text, place }) => <text key={`${text} ${place}`} x={toX(n) + 10} y={toY(place) + 4}>{text}</text>)}
                <rect class="brush" x={toX(n) - BRUSH / 2} width={BRUSH} y={TOP - 8} height={HEIGHT - TOP - BOTTOM + 16}
                  data-axis={names[n]} onPointerDown={(event) => startDrag(event, n)} />
              </g>
            );
          })}
        </svg>
      </div>
      <p class="quiet" aria-hidden="true">{near ? near.label : "Drag along an axis to limit it, and click the axis to clear the limits. Hover a line to see its trial; click to open the trial."}</p>
    </>
  );
}
