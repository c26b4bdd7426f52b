import { expect, test } from "vitest";
import { linePath } from "./best_curve";

test("a line fills its box from the left to the right", () => {
  // The box is 96 wide and 20 high, with a margin of 1 and 2; larger values are higher.
  expect(linePath([[0, 1], [10, 3], [20, 2]])).toBe("M1 18L48 2L95 10");
});

test("equal values are a level line", () => {
  expect(linePath([[0, 5], [4, 5]])).toBe("M1 10L95 10");
});
