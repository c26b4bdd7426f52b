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

/** The bars of a histogram: the counts by width, so that the area of a bar is its count. */
export function histogramBars(buckets: readonly (readonly number[])[]): { left: number; right: number; count: number; density: number }[] {
  return buckets.map(([left = 0, right = 0, count = 0]) => ({ left, right, count, density: right > left ? count / (right - left) : 0 }));
}
