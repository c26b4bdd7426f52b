import { expect, test } from "vitest";
import { quantile, quantileBand } from "./quantile_band";

test("quantiles are interpolated between neighbours", () => {
  // 0.25 of the way over 3 gaps is at 0.75: 1 + 0.75 * (2 - 1).
  expect(quantile([1, 2, 3, 4], 0.25)).toBe(1.75);
  expect(quantile([7], 0.9)).toBe(7);
});

test("the median and the bands follow curves of different places", () => {
  const band = quantileBand([[[0, 0], [10, 10]], [[0, 2], [5, 2], [10, 2]], [[0, 4], [10, 24]]]);
  // At 5 the curves are 5, 2 and 14.
  expect(band.median).toEqual([[0, 2], [5, 5], [10, 10]]);
  // A quarter over two gaps is at 0.5: 2 + 0.5 * (5 - 2) = 3.5, and 5 + 0.5 * (14 - 5) = 9.5.
  expect(band.half.low[1]).toEqual([5, 3.5]);
  expect(band.half.high[1]).toEqual([5, 9.5]);
});

test("a curve counts only as far as it goes", () => {
  const band = quantileBand([[[0, 1], [10, 1]], [[0, 2], [10, 2]], [[0, 3], [5, 3]]]);
  expect(band.median).toEqual([[0, 2], [5, 2]]);
  expect(quantileBand([[[0, null]], []]).median).toEqual([]);
});
