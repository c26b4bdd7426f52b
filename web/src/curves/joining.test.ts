import { expect, test } from "vitest";
import { joinCurves, toPoints } from "./joining";

test("curves share their steps, and have no value where they have no point", () => {
  expect(joinCurves([[[0, 1], [2, 3]], [[1, 5], [2, null]]])).toEqual([
    [0, 1, 2],
    [1, undefined, 3],
    [undefined, 5, null],
  ]);
});

test("steps are in order of numbers", () => {
  expect(joinCurves([[[10, 1], [9, 2]]])[0]).toEqual([9, 10]);
});

test("what is no number has no value", () => {
  expect(toPoints([[1, "NaN"], [2, 0.5], [3, null]])).toEqual([[1, null], [2, 0.5], [3, null]]);
});

test("of many steps there are so many, and every curve keeps its ends", () => {
  const curve = Array.from({ length: 1001 }, (_, x): [number, number] => [x, 10 * x]);
  const [steps, values] = joinCurves([curve], 11);
  // Each hundredth; a point between two of them is at the one before, and the latest stays.
  expect(steps).toEqual([0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]);
  expect([values![0], values![9], values![10]]).toEqual([990, 9990, 10000]);
});
