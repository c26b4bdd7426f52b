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
