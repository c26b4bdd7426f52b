import { expect, test } from "vitest";
import { rowWindow, WHOLE_MAX } from "./row_window";

test("a short table is whole", () => {
  expect(rowWindow(WHOLE_MAX, 90, 30)).toEqual({ first: 0, end: WHOLE_MAX, above: 0, below: 0 });
});

test("of a long one there are 80 rows, and the height of the others", () => {
  expect(rowWindow(1000, 0, 30)).toEqual({ first: 0, end: 80, above: 0, below: 920 * 30 });
  // The row at 505 is the first in sight: from a step of 20 before 500.
  expect(rowWindow(1000, 505, 30)).toEqual({ first: 480, end: 560, above: 480 * 30, below: 440 * 30 });
});

test("at its end there are as many", () => {
  expect(rowWindow(1000, 999, 30)).toEqual({ first: 920, end: 1000, above: 920 * 30, below: 0 });
});
