import { expect, test } from "vitest";
import { parseTrials } from "./trial_list";

test("a list of trials has ids without repetitions", () => {
  expect(["", "7", "1, 2,2 3"].map(parseTrials)).toEqual([[], [7], [1, 2, 3]]);
  expect(["0", "x", "-1", Array.from({ length: 101 }, (_, n) => n + 1).join()].map(parseTrials)).toEqual([undefined, undefined, undefined, undefined]);
});
