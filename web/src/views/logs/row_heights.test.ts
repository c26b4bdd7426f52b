import { expect, test } from "vitest";
import { RowHeights } from "./row_heights";

const KEYS = Array.from({ length: 1_000 }, (_, n) => String(n));

test("rows that were not drawn have the mean height", () => {
  const heights = new RowHeights(KEYS);
  // The guess is 19 pixels.
  expect([heights.top(1), heights.top(1_000)]).toEqual([19, 19_000]);
  expect(heights.measure("0", 10)).toBe(true);
  expect(heights.measure("0", 10)).toBe(false);
  heights.measure("1", 30);
  // (10 + 30) / 2 = 20 for each of the other 998 rows.
  expect([heights.top(1), heights.top(2), heights.top(1_000)]).toEqual([10, 40, 40 + 998 * 20]);
});

test("a row is found by its distance", () => {
  const heights = new RowHeights(KEYS);
  heights.measure("0", 100);
  heights.measure("1", 100);
  expect([0, 99, 100, 250, 1e9].map((top) => heights.rowAt(top))).toEqual([0, 0, 1, 2, 999]);
});

test("few rows around the visible part are drawn, and the rest is empty space", () => {
  const heights = new RowHeights(KEYS);
  const drawn = heights.drawn(9_500, 190);
  // Row 500 begins at 9,500, row 510 at 9,690; 20 rows are drawn on each side.
  expect(drawn).toEqual({ first: 480, end: 531, above: 480 * 19, below: (1_000 - 531) * 19 });
  expect(heights.drawn(0, 190).first).toBe(0);
  expect(heights.drawn(1e9, 190).end).toBe(1_000);
});

test("heights of rows that are gone do not count for ever", () => {
  const heights = new RowHeights(KEYS);
  for (let n = 0; n < 5_000; n += 1) heights.measure(`old ${n}`, 1);
  heights.setKeys(["0", "1"]);
  expect(heights.top(2)).toBe(38);
});

test("an empty log has no rows", () => {
  expect(new RowHeights([]).drawn(0, 100)).toEqual({ first: 0, end: 0, above: 0, below: 0 });
});
