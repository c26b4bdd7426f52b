import { expect, test } from "vitest";
import { changedLabels } from "./bulk_actions";

test("labels are added once and removed", () => {
  expect(changedLabels(["a", "b"], ["b", "c"], ["a"])).toEqual(["b", "c"]);
  // A label that is added and removed is added.
  expect(changedLabels(["a"], ["a"], ["a"])).toEqual(["a"]);
  expect(changedLabels([], [], ["a"])).toEqual([]);
});
