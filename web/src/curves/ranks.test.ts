import { expect, test } from "vitest";
import { ranks } from "./ranks";

test("equal values share the mean of their ranks", () => {
  expect(ranks([5, 1, 5, 9])).toEqual([1.5, 0, 1.5, 3]);
});
