import { expect, test } from "vitest";
import { distribution, shareQuantile } from "./distribution";

test("equal values are one step with their common share", () => {
  expect(distribution([3, 1, 2, 2], true)).toEqual([
    { value: 1, share: 0.25 }, { value: 2, share: 0.75 }, { value: 3, share: 1 },
  ]);
});

test("larger values come first if they are better", () => {
  const points = distribution([1, 2, 3, 4], false);
  expect(points[0]).toEqual({ value: 4, share: 0.25 });
  expect(shareQuantile(points, 0.5)).toBe(3);
  expect(shareQuantile(points, 1)).toBe(1);
  expect(shareQuantile([], 0.5)).toBeNull();
});
