import { expect, test } from "vitest";
import type { Columns } from "./joining";
import { nearestPoint, type Plane } from "./nearest_point";

const plane = (left: number, top: number): Plane => ({ toX: (x) => x, toY: (y) => y, left, top });
// A line from (0, 0) to (100, 100), and a short one at 50 that ends at 10.
const columns: Columns = [[0, 10, 100], [0, undefined, 100], [50, 50, undefined]];

test("a line is near between its points, and gives the nearer end", () => {
  // (30, 40) is 10 / sqrt(2) = 7.1 from the diagonal.
  expect(nearestPoint(columns, ["line", "line"], plane(30, 40), 1, 8)).toEqual({ curve: 0, index: 0 });
  expect(nearestPoint(columns, ["line", "line"], plane(70, 70), 2, 8)).toEqual({ curve: 0, index: 2 });
  expect(nearestPoint(columns, ["line", "line"], plane(30, 40), 1, 7)).toBeNull();
});

test("a curve that has ended is near at its end only", () => {
  expect(nearestPoint(columns, ["line", "line"], plane(14, 50), 1, 8)).toEqual({ curve: 1, index: 1 });
  expect(nearestPoint(columns, ["line", "line"], plane(25, 60), 1, 8)).toBeNull();
});

test("curves without a kind are not found", () => {
  expect(nearestPoint(columns, [null, "line"], plane(70, 70), 2, 8)).toBeNull();
});

test("a dot is near by its distance in both directions", () => {
  const dots: Columns = [[0, 10, 20], [0, 30, 0]];
  expect(nearestPoint(dots, ["points"], plane(12, 2), 1, 24)).toEqual({ curve: 0, index: 2 });
  expect(nearestPoint(dots, ["points"], plane(10, 28), 1, 24)).toEqual({ curve: 0, index: 1 });
  expect(nearestPoint(dots, ["points"], plane(10, 14), 1, 5)).toBeNull();
});
