/** A plane of two values with a point for each trial, over contours. */

import { axisTexts, type Axis } from "./axes";
import { bandOf, Dots } from "./dots";
import { BANDS, bandColour } from "./parallel";
import { SURFACE_SIZE } from "./surface";

export interface PlaneDot {
  key: number;
  x: unknown;
  y: unknown;
  /** How good it is, 0 the worst and 1 the best. */
  quality: number;
  href: string;
  label: string;
  isBest: boolean;
}

interface Props {
  label: string;
  xLabel: string;
  yLabel: string;
  xAxis: Axis;
  yAxis: Axis;
  dots: PlaneDot[];
  /** A quality for each cell of the plane, as `smoothSurface` has them. */
  surface?: (number | null)[];
}

// Values beside an axis, round numbers beside it, and the length of all texts there.
const [VALUES_MAX, TICKS, TEXT_MAX] = [12, 5, 16];
const [WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT] = [640, 440, 110, 26, 50, 16];

export function Plane({ label, xLabel, yLabel, xAxis, yAxis, dots, surface }: Props) {
  const toX = (place: number) => LEFT + 8 + place * (WIDTH - LEFT - RIGHT - 16);
  const toY = (place: number) => HEIGHT - BOTTOM - 8 - place * (HEIGHT - TOP - BOTTOM - 16);
  const placed = dots.flatMap((dot) => {
    const [x, y] = [xAxis.place(dot.x), yAxis.place(dot.y)];
    return x === null || y === null ? [] : [{ ...dot, left: toX(x), top: toY(y) }];
  });
  return (
    <svg class="plane" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label={label}>
      {surface && <Contours surface={surface} toX={toX} toY={toY} />}
      <g aria-hidden="true">
        <path class="axis" d={`M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}`} />
        {axisTexts(xAxis, TICKS, TEXT_MAX).slice(0, VALUES_MAX).map(({ text, place }) => <text key={`${text} ${place}`} x={toX(place)} y={HEIGHT - BOTTOM + 16} text-anchor={place < 0.05 ? "start" : place > 0.95 ? "end" : "middle"}>{text}</text>)}
        {axisTexts(yAxis, TICKS, TEXT_MAX).slice(0, VALUES_MAX).map(({ text, place }) => <text key={`${text} ${place}`} x={LEFT - 6} y={toY(place) + 4} text-anchor="end">{text}</text>)}
        <text x={(LEFT + WIDTH) / 2} y={HEIGHT - 8} text-anchor="middle">{xLabel.slice(0, 60)}{xAxis.isLog ? " (log)" : ""}</text>
        <text x={4} y={14}>{yLabel.slice(0, 60)}{yAxis.isLog ? " (log)" : ""}</text>
      </g>
      <Dots dots={placed} radius={5} />
    </svg>
  );
}

/** A path for each band of quality: a cell is a rectangle of it. */
function Contours({ surface, toX, toY }: { surface: (number | null)[]; toX: (place: number) => number; toY: (place: number) => number }) {
  const bands = Array.from({ length: BANDS }, (): string[] => []);
  const [width, height] = [toX(1 / SURFACE_SIZE) - toX(0), toY(0) - toY(1 / SURFACE_SIZE)];
  surface.forEach((quality, cell) => {
    if (quality === null) return;
    const [column, row] = [cell % SURFACE_SIZE, Math.floor(cell / SURFACE_SIZE)];
    bands[bandOf(quality)]!.push(`M${toX(column / SURFACE_SIZE).toFixed(1)} ${toY(row / SURFACE_SIZE).toFixed(1)}h${width.toFixed(1)}v${(-height).toFixed(1)}h${(-width).toFixed(1)}z`);
  });
  return (
    <g class="contours" aria-hidden="true">
      {bands.map((paths, band) => paths.length > 0 && <path key={band} d={paths.join("")} fill={bandColour(band)} />)}
    </g>
  );
}
