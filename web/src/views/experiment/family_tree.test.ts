import { expect, test } from "vitest";
import { changesText, depthsOf } from "./family_tree";

test("members are as deep as they have originals in the family", () => {
  const members = [{ id: 3, forked_from: 1 }, { id: 5, forked_from: 3 }, { id: 9, forked_from: 5 }, { id: 7, forked_from: 3 }];
  // The original of 3 was deleted.
  expect([...depthsOf(members)]).toEqual([[3, 0], [5, 1], [9, 2], [7, 1]]);
});

test("changes name the values before and after", () => {
  const differences = [
    { path: "hyperparameters.lr", before: 0.1, after: null },
    { path: "searcher.name", before: "single", after: "random" },
  ];
  const fork = { forked_from: 1, differences, differences_left_out: 2, has_other_code: true };
  expect(changesText(fork)).toBe("lr: 0.1 → unset, searcher.name: single → random, 2 more, other code");
  expect(changesText({ ...fork, differences: [], differences_left_out: 0, has_other_code: false })).toBe("nothing");
  expect(changesText({ ...fork, differences: null })).toBe("fork of experiment 1");
  expect(changesText({ ...fork, forked_from: null, differences: null })).toBe("");
});
