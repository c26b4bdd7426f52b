/**
 * Points of two values, as a picture of vectors: a link each, which a keyboard reaches. Of many
 * points the best alone are links, the others one path.
 */

import { numberText } from "../parts/format";

export interface Dot {
  key: number;
  x: number;
  y: number;
  href: string;
  label: string;
  isBest: boolean;
}

interface Props {
  label: string;
  xLabel: string;
  yLabel: string;
  dots: Dot[];
  isLogX: boolean;
  /** Texts below places of x, for values that are no numbers. */
  ticks?: string[];
}

const LINKS_MAX = 150;
const [WIDTH, HEIGHT, LEFT, BOTTOM] = [420, 260, 72, 36];
// Texts that are nearer to an end of the axis begin or end at their place, so that none is cut off.
const EDGE = 40;

export function Scatter({ label, xLabel, yLabel, dots, isLogX, ticks }: Props) {
  const scaleX = isLogX ? Math.log10 : (value: number) => value;
  const xs = dots.map(({ x }) => scaleX(x));
  const ys = dots.map(({ y }) => y);
  const [toX, toY] = [axis(xs, LEFT, WIDTH - 12), axis(ys, HEIGHT - BOTTOM, 12)];
  const xTicks = ticks
    ? ticks.map((text, x) => ({ text, at: toX(x) }))
    : ends(dots.map(({ x }) => x)).map((x) => ({ text: numberText(x), at: toX(scaleX(x)) }));
  const isFew = dots.length <= LINKS_MAX;
  const [linked, plain] = [dots.filter(({ isBest }) => isFew || isBest), isFew ? [] : dots.filter(({ isBest }) => !isBest)];
  return (
    <svg class="scatter" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label={label}>
      <line x1={LEFT} y1={HEIGHT - BOTTOM} x2={WIDTH} y2={HEIGHT - BOTTOM} class="axis" />
      <line x1={LEFT} y1={0} x2={LEFT} y2={HEIGHT - BOTTOM} class="axis" />
      {xTicks.map(({ text, at }) => (
        <text key={text} x={at} y={HEIGHT - BOTTOM + 14} text-anchor={at <= LEFT + EDGE ? "start" : at >= WIDTH - EDGE ? "end" : "middle"}>{text.slice(0, 16)}</text>
      ))}
      {ends(ys).map((y) => (
        <text key={y} x={LEFT - 4} y={toY(y) + 4} text-anchor="end">{numberText(y)}</text>
      ))}
      <text x={(LEFT + WIDTH) / 2} y={HEIGHT - 4} text-anchor="middle">{xLabel.slice(0, 60)}{isLogX ? " (log)" : ""}</text>
      <text x={LEFT + 8} y={12}>{yLabel.slice(0, 60)}</text>
      {plain.length > 0 && <path class="dots" d={plain.map((dot) => `M${toX(scaleX(dot.x)).toFixed(1)} ${toY(dot.y).toFixed(1)}h0`).join("")} />}
      {linked.map((dot) => (
        <a key={dot.key} href={dot.href} aria-label={dot.label}>
          <circle cx={toX(scaleX(dot.x))} cy={toY(dot.y)} r={dot.isBest ? 6 : 4} class={dot.isBest ? "best" : ""}>
            <title>{dot.label}</title>
          </circle>
        </a>
      ))}
    </svg>
  );
}

function ends(values: number[]): number[] {
  return [...new Set([Math.min(...values), Math.max(...values)])];
}

/** From a value to its place between two others; all in the middle where they are one. */
function axis(values: number[], from: number, to: number): (value: number) => number {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return (value) => (high === low ? (from + to) / 2 : from + ((value - low) / (high - low)) * (to - from));
}
