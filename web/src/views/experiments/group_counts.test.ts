import { expect, test } from "vitest";
import { groupCountText } from "./group_counts";

test("a group says how many of its experiments are shown", () => {
  expect(groupCountText(3, 40, true)).toBe("3 of 40");
  expect(groupCountText(3, 3, true)).toBe("3");
  expect(groupCountText(3, 40, false)).toBe("3 of at most 40");
  expect(groupCountText(3, 2, true)).toBe("3");
  expect(groupCountText(3, undefined, true)).toBe("3 shown");
});
