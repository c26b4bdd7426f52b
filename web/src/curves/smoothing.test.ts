import { expect, test } from "vitest";
import { bestSoFar, smoothCurve, type Point } from "./smoothing";

test("without weight a curve stays as it is", () => {
  const points: Point[] = [[0, 3], [1, null], [2, 5]];
  expect(smoothCurve(points, 0)).toEqual(points);
});

test("a constant stays constant, from its first point on", () => {
  const points: Point[] = [[0, 2], [1, 2], [2, 2]];
  for (const [, y] of smoothCurve(points, 0.9)) expect(y).toBeCloseTo(2, 12);
});

test("each point is the corrected average of all before", () => {
  // Sums 0.5 * 1, then 0.5 * 0.5 + 0.5 * 3 = 1.75; corrections 0.5 and 0.75; 1.75 / 0.75 = 7 / 3.
  expect(smoothCurve([[0, 1], [1, 3]], 0.5)).toEqual([[0, 1], [1, expect.closeTo(7 / 3, 12)]]);
});

test("what is no number breaks no average", () => {
  expect(smoothCurve([[0, 1], [1, null], [2, 1]], 0.5)).toEqual([[0, 1], [1, null], [2, 1]]);
});

test("the best so far never gets worse, whichever way is better", () => {
  const points: Point[] = [[0, 3], [1, 1], [2, null], [3, 2]];
  expect(bestSoFar(points, true)).toEqual([[0, 3], [1, 1], [2, 1], [3, 1]]);
  expect(bestSoFar(points, false)).toEqual([[0, 3], [1, 3], [2, 3], [3, 3]]);
  expect(bestSoFar([[0, null], [1, 4]], true)).toEqual([[0, null], [1, 4]]);
});
