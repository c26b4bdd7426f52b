/** Parallel coordinates: a line for each trial, over an axis for each hyperparameter. */

import { numberText, valueText } from "../parts/format";
import { axisPlaces, type Axis } from "./axes";

export interface Row {
  key: number;
  href: string;
  label: string;
  values: unknown[];
  /** How good it is, 0 the worst and 1 the best. */
  quality: number;
}

interface Props {
  label: string;
  names: string[];
  rows: Row[];
}

const [GAP, HEIGHT, TOP, BOTTOM, SIDE] = [190, 280, 30, 20, 95];

export function Parallel({ label, names, rows }: Props) {
  const axes = names.map((_, n) => axisPlaces(rows.map(({ values }) => values[n])));
  const width = 2 * SIDE + GAP * (names.length - 1);
  const toX = (n: number) => SIDE + n * GAP;
  const toY = (place: number) => HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM);
  // The best are drawn last, above the others.
  const ordered = [...rows].sort((a, b) => a.quality - b.quality);
  return (
    <div class="scroll" role="region" aria-label={label} tabIndex={0}>
      <svg class="parallel" width={width} height={HEIGHT} role="group" aria-label={label}>
        {ordered.map((row) => {
          const points = axes.map((axis, n) => {
            const place = axis.place(row.values[n]);
            return place === null ? "" : `${toX(n)},${toY(place)}`;
          });
          return (
            <a key={row.key} href={row.href} aria-label={row.label}>
              <polyline points={points.filter(Boolean).join(" ")} stroke-opacity={0.15 + 0.75 * row.quality}>
                <title>{row.label}</title>
              </polyline>
            </a>
          );
        })}
        {axes.map((axis, n) => (
          <g key={names[n]} aria-hidden="true">
            <line x1={toX(n)} x2={toX(n)} y1={TOP} y2={HEIGHT - BOTTOM} class="axis" />
            <text x={toX(n)} y={14} text-anchor="middle">{names[n]!.slice(0, 22)}{axis.isLog ? " (log)" : ""}</text>
            {axisTicks(axis).map(({ text, place }) => (
              <text key={text} x={toX(n) + 4} y={toY(place) + 4}>{text}</text>
            ))}
          </g>
        ))}
      </svg>
    </div>
  );
}

function axisTicks(axis: Axis): { text: string; place: number }[] {
  return axis.ends.map((value) => ({
    text: (typeof value === "number" ? numberText(value) : valueText(value)).slice(0, 14),
    place: axis.place(value) ?? 0,
  }));
}
