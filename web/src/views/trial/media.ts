/** The media of a trial, by kind and tag. */

import type { Schemas } from "../../api/client";

export type MediaItem = Schemas["MediaItem"];

/** The items of a tag, by step. */
export interface MediaSeries {
  kind: string;
  tag: string;
  items: MediaItem[];
}

const KINDS = ["image", "histogram", "text", "audio"];

/** The items by kind and tag. Of several items at a step, the latest is kept. */
export function mediaSeries(items: readonly MediaItem[]): MediaSeries[] {
  const found = new Map<string, { kind: string; tag: string; steps: Map<number, MediaItem> }>();
  for (const item of items) {
    const key = `${item.kind} ${item.tag}`;
    const series = found.get(key) ?? { kind: item.kind, tag: item.tag, steps: new Map<number, MediaItem>() };
    const before = series.steps.get(item.step);
    if (!before || before.time_ms <= item.time_ms) series.steps.set(item.step, item);
    found.set(key, series);
  }
  return [...found.values()]
    .map(({ kind, tag, steps }) => ({ kind, tag, items: [...steps.values()].sort((a, b) => a.step - b.step) }))
    .sort((a, b) => KINDS.indexOf(a.kind) - KINDS.indexOf(b.kind) || a.tag.localeCompare(b.tag, undefined, { numeric: true }));
}

export interface HistogramBar {
  left: number;
  right: number;
  count: number;
}

/**
 * A histogram as bars of one width. TensorBoard's buckets grow with their distance from 0: the count of
 * a bucket is divided among the bars in proportion to their parts of the bucket.
 */
export function histogramBars(buckets: readonly (readonly number[])[], most = 40): HistogramBar[] {
  const known = buckets.flatMap(([left, right, count]) => (left === undefined || right === undefined || count === undefined ? [] : [{ left, right, count }]));
  const [low, high] = [Math.min(...known.map(({ left }) => left)), Math.max(...known.map(({ right }) => right))];
  if (known.length === 0) return [];
  if (high <= low) return [{ left: low, right: high, count: known.reduce((sum, { count }) => sum + count, 0) }];
  const width = (high - low) / most;
  return Array.from({ length: most }, (_, n) => {
    const [left, right] = [low + n * width, low + (n + 1) * width];
    const count = known.reduce((sum, bucket) => sum + bucket.count * shareWithin(bucket, left, right, n === most - 1), 0);
    return { left, right, count };
  });
}

/** The share of a bucket that lies in a bar. A bucket without a width belongs to the bar that begins there. */
function shareWithin({ left, right }: HistogramBar, low: number, high: number, isLast: boolean): number {
  if (right <= left) return left >= low && (left < high || isLast) ? 1 : 0;
  return Math.max(0, Math.min(right, high) - Math.max(left, low)) / (right - left);
}

/** A text in parts: lines, and tables of Markdown with a row for each of their lines. */
export type TextPart = { text: string } | { rows: string[][] };

/** The parts of a text. A table begins with a head and a line of dashes, as in `| a |` and `|---|`. */
export function textParts(text: string): TextPart[] {
  const parts: TextPart[] = [];
  const lines = text.split("\n");
  let plain: string[] = [];
  const endPlain = () => {
    if (plain.some((line) => line.trim())) parts.push({ text: plain.join("\n") });
    plain = [];
  };
  for (let n = 0; n < lines.length; n += 1) {
    const isTable = lines[n]!.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[n + 1] ?? "") && lines[n + 1]!.includes("|");
    if (!isTable) {
      plain.push(lines[n]!);
      continue;
    }
    endPlain();
    const rows = [cellsOf(lines[n]!)];
    for (n += 2; n < lines.length && lines[n]!.includes("|"); n += 1) rows.push(cellsOf(lines[n]!));
    n -= 1;
    parts.push({ rows });
  }
  endPlain();
  return parts;
}

function cellsOf(line: string): string[] {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}
