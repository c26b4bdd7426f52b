import { expect, test } from "vitest";
import { histogramBars, mediaSeries, type MediaItem } from "./media";

const item = (kind: string, tag: string, step: number, time = 0): MediaItem =>
  ({ kind, tag, step, time_ms: time, size: 0, content_type: "", content: "", text: "", buckets: [] });

test("media are sorted by kind, tag and step", () => {
  const found = mediaSeries([item("text", "a", 1), item("image", "b10", 5), item("image", "b2", 3), item("image", "b2", 1)]);
  expect(found.map(({ kind, tag, items }) => [kind, tag, items.map(({ step }) => step)])).toEqual([
    ["image", "b2", [1, 3]], ["image", "b10", [5]], ["text", "a", [1]],
  ]);
});

test("a step that a later run repeated has the later item", () => {
  const [series] = mediaSeries([item("image", "a", 1, 20), item("image", "a", 1, 10)]);
  expect(series!.items.map(({ time_ms: time }) => time)).toEqual([20]);
});

test("a bar's area is its count", () => {
  expect(histogramBars([[0, 2, 4], [2, 2, 1]])).toEqual([
    { left: 0, right: 2, count: 4, density: 2 }, { left: 2, right: 2, count: 1, density: 0 },
  ]);
});
