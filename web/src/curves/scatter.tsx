/** Points of two values, as a picture of vectors. */

import { numberText } from "../parts/format";
import { choicesOf } from "./axes";
import { Dots } from "./dots";
import { axisTicks } from "./ticks";

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

const [WIDTH, HEIGHT, LEFT, TOP, BOTTOM] = [420, 270, 72, 28, 36];
// Texts that are nearer to an end of the axis begin or end at their place, so that none is cut off.
const EDGE = 40;
// Pixels from an end of the axis in which no other text has room.
const [ROOM_X, ROOM_Y] = [80, 16];
const TICKS = 4;

export function Scatter({ label, xLabel, yLabel, dots, isLogX, ticks }: Props) {
  const scaleX = isLogX ? Math.log10 : (value: number) => value;
  const xs = dots.map(({ x }) => scaleX(x));
  const ys = dots.map(({ y }) => y);
  const [toX, toY] = [axis(xs, LEFT, WIDTH - 12), axis(ys, HEIGHT - BOTTOM - 8, TOP)];
  const xTicks = ticks
    ? ticks.map((text, x) => ({ text, at: toX(x) }))
    : marks(dots.map(({ x }) => x), isLogX, (x) => toX(scaleX(x)), ROOM_X);
  return (
    <svg class="scatter" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label={label}>
      <line x1={LEFT} y1={HEIGHT - BOTTOM} x2={WIDTH} y2={HEIGHT - BOTTOM} class="axis" />
      <line x1={LEFT} y1={TOP - 10} x2={LEFT} y2={HEIGHT - BOTTOM} class="axis" />
      {xTicks.map(({ text, at }) => (
        <text key={text} x={at} y={HEIGHT - BOTTOM + 14} text-anchor={at <= LEFT + EDGE ? "start" : at >= WIDTH - EDGE ? "end" : "middle"}>{text.slice(0, 16)}</text>
      ))}
      {marks(ys, false, toY, ROOM_Y).map(({ text, at }) => (
        <text key={text} x={LEFT - 4} y={at + 4} text-anchor="end">{text}</text>
      ))}
      <text x={(LEFT + WIDTH) / 2} y={HEIGHT - 4} text-anchor="middle">{xLabel.slice(0, 60)}{isLogX ? " (log)" : ""}</text>
      <text x={4} y={12}>{yLabel.slice(0, 60)}</text>
      <Dots dots={dots.map((dot) => ({ ...dot, left: toX(scaleX(dot.x)), top: toY(dot.y) }))} radius={4} />
    </svg>
  );
}

/** The texts beside an axis: the least and the greatest value, and round numbers between them. */
function marks(values: number[], isLog: boolean, toPixel: (value: number) => number, room: number): { text: string; at: number }[] {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const ends = [...new Set([low, high])].map((value) => ({ text: numberText(value), at: toPixel(value) }));
  const between = choicesOf(values)?.map((at) => ({ at, text: numberText(at) })) ?? axisTicks(isLog ? "log" : "number", low, high, TICKS);
  const inner = between.map(({ at, text }) => ({ text, at: toPixel(at) }));
  return [...ends, ...inner.filter(({ at }) => ends.every((end) => Math.abs(end.at - at) > room))];
}

/** From a value to its place between two others; all in the middle where they are one. */
function axis(values: number[], from: number, to: number): (value: number) => number {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return (value) => (high === low ? (from + to) / 2 : from + ((value - low) / (high - low)) * (to - from));
}
