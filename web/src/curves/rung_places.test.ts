import { expect, test } from "vitest";
import { barShares, metricScale } from "./rung_places";

test("the best metric is at 1, whichever way is better", () => {
  const down = metricScale([1, 2, 3], true)!;
  expect([1, 2, 3].map(down.place)).toEqual([1, 0.5, 0]);
  const up = metricScale([1, 2, 3], false)!;
  expect([1, 2, 3].map(up.place)).toEqual([0, 0.5, 1]);
  expect([up.worst, up.best, up.isCut]).toEqual([1, 3, false]);
});

test("what is far worse than the others lies at the end of their scale", () => {
  // Quartiles of 1 2 3 4 1000: 2 and 4; the fence is 4 + 1.5 * 2 = 7.
  const scale = metricScale([1, 2, 3, 4, 1000], true)!;
  expect([scale.worst, scale.best, scale.isCut]).toEqual([4, 1, true]);
  expect(scale.place(1000)).toBe(0);
});

test("one value, equal values and none have a scale or not", () => {
  expect(metricScale([5], true)!.place(5)).toBe(1);
  expect(metricScale([5, 5, 5, 5, 9], true)!.place(9)).toBe(0);
  expect(metricScale([], true)).toBeNull();
  expect(metricScale([Number.NaN], true)).toBeNull();
});

test("a bar is divided by the counts, and empty without any", () => {
  expect(barShares([1, 0, 3])).toEqual([{ start: 0, size: 0.25 }, { start: 0.25, size: 0 }, { start: 0.25, size: 0.75 }]);
  expect(barShares([0, 0])).toEqual([{ start: 0, size: 0 }, { start: 0, size: 0 }]);
});
