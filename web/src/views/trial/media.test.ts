import { expect, test } from "vitest";
import { histogramBars, mediaSeries, textParts, type MediaItem } from "./media";

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

test("buckets are divided among bars of one width", () => {
  // The first bucket covers three bars of width 1, the second the last one.
  expect(histogramBars([[0, 3, 6], [3, 4, 5]], 4).map(({ count }) => count)).toEqual([2, 2, 2, 5]);
  expect(histogramBars([[0, 2, 4], [2, 2, 1]], 2).map(({ count }) => count)).toEqual([2, 3]);
  expect(histogramBars([[1, 1, 7]])).toEqual([{ left: 1, right: 1, count: 7 }]);
  expect(histogramBars([])).toEqual([]);
});

test("tables of Markdown are apart from the text around them", () => {
  expect(textParts("before\n| a | b |\n|---|:-:|\n| 1 | 2 |\nafter")).toEqual([
    { text: "before" }, { rows: [["a", "b"], ["1", "2"]] }, { text: "after" },
  ]);
  expect(textParts("a | b\nno table")).toEqual([{ text: "a | b\nno table" }]);
});
