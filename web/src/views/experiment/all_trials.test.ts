import { expect, test } from "vitest";

import { differingNames, flatten } from "./all_trials";

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
