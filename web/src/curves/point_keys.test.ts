import { expect, test } from "vitest";
import type { Columns } from "./joining";
import { pointAfterKey, reachedPoints } from "./point_keys";

// Two searches, whose points are curves 0 and 2, and a line between them.
const COLUMNS: Columns = [[1, 2, 3, 4], [5, undefined, 6, 7], [5, 5, 5, 5], [undefined, 1, null, 2]];
const KINDS = ["points", "steps", "points"] as const;
const ALL = { min: 1, max: 4 };

test("only points in the shown part of visible curves are reached", () => {
  expect(reachedPoints(COLUMNS, KINDS, ALL).map((points) => points.map(({ index }) => index))).toEqual([[0, 2, 3], [1, 3]]);
  expect(reachedPoints(COLUMNS, [null, "steps", "points"], { min: 3, max: 4 })).toEqual([[{ curve: 2, index: 3 }]]);
});

test("keys lead from point to point and stop at the ends", () => {
  const reached = reachedPoints(COLUMNS, KINDS, ALL);
  const walk = (...keys: string[]) => keys.reduce<ReturnType<typeof pointAfterKey>>((at, key) => pointAfterKey(key, reached, at), null)?.index;
  expect(walk("ArrowRight")).toBe(0);
  expect(walk("ArrowRight", "ArrowRight")).toBe(2);
  expect(walk("ArrowLeft")).toBe(3);
  expect(walk("End", "ArrowRight")).toBe(3);
  expect(walk("Home", "ArrowLeft")).toBe(0);
});

test("up and down lead to the nearest point of the other search", () => {
  const reached = reachedPoints(COLUMNS, KINDS, ALL);
  expect(pointAfterKey("ArrowDown", reached, { curve: 0, index: 0 })).toEqual({ curve: 2, index: 1 });
  expect(pointAfterKey("ArrowUp", reached, { curve: 2, index: 3 })).toEqual({ curve: 0, index: 3 });
  expect(pointAfterKey("ArrowUp", reached, { curve: 0, index: 2 })).toEqual({ curve: 0, index: 2 });
});

test("other keys and charts without points lead nowhere", () => {
  expect(pointAfterKey("a", reachedPoints(COLUMNS, KINDS, ALL), null)).toBeNull();
  expect(pointAfterKey("Home", [], null)).toBeNull();
});
