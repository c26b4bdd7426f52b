import { expect, test } from "vitest";

import { differingNames, flatten, logNames } from "./all_trials";

test("nested values have paths, and names with dots stand in quotes", () => {
  expect(flatten({ a: { b: 1, "c d": 2 }, "a.b": 3, 'x"y': 4, größe: 5, list: [1] })).toEqual({
    "a.b": 1,
    'a."c d"': 2,
    '"a.b"': 3,
    '"x\\"y"': 4,
    größe: 5,
    list: [1],
  });
});

test("a name with a dot and a nested name differ on their own", () => {
  const rows = [{ a: { b: 1 }, "a.b": 1 }, { a: { b: 1 }, "a.b": 2 }].map((row) => flatten(row));
  expect(differingNames(rows)).toEqual(['"a.b"']);
});

test("hyperparameters of a logarithmic search are found by their paths", () => {
  const log = { type: "log", base: 10, minval: -4, maxval: -1 };
  const space = { lr: log, "a.b": log, optimizer: { decay: log, momentum: { type: "double", minval: 0, maxval: 1 } }, type: "log", layers: [1, 2] };
  expect(logNames(space)).toEqual(["lr", '"a.b"', "optimizer.decay"]);
  expect(logNames(undefined)).toEqual([]);
});
