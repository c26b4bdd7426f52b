/** Labels at the ends of curves, as many as fit beside each other. */

import type { Columns } from "./joining";

export interface EndLabel {
  text: string;
  /** The left end and the middle of the text, in pixels. */
  x: number;
  y: number;
}

interface Box {
  /** The pixels in which labels may lie. */
  right: number;
  top: number;
  bottom: number;
  /** From a line of text to the next. */
  lineHeight: number;
}

/** The labels that overlap no label before them, in the given order: the first label is always kept. */
export function placeLabels(wanted: readonly EndLabel[], widthOf: (text: string) => number, box: Box): EndLabel[] {
  const placed: (EndLabel & { end: number })[] = [];
  for (const label of wanted) {
    const x = Math.min(label.x, box.right - widthOf(label.text));
    const y = Math.min(box.bottom - box.lineHeight / 2, Math.max(box.top + box.lineHeight / 2, label.y));
    const end = x + widthOf(label.text);
    const isFree = placed.every((other) => Math.abs(other.y - y) >= box.lineHeight || other.x > end || other.end < x);
    if (isFree) placed.push({ text: label.text, x, y, end });
  }
  return placed.map(({ text, x, y }) => ({ text, x, y }));
}

/** The place in the columns of a curve's last value up to `max`; null without one from `min` on. */
export function lastPlace([steps, ...curves]: Columns, curve: number, min: number, max: number): number | null {
  const values = curves[curve] ?? [];
  for (let n = steps.length - 1; n >= 0 && steps[n]! >= min; n -= 1) {
    if (steps[n]! <= max && typeof values[n] === "number") return n;
  }
  return null;
}
