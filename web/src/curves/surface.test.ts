import { expect, test } from "vitest";
import { smoothSurface } from "./surface";

test("a surface has the value of its only point nearby and is empty far away", () => {
  const surface = smoothSurface([{ x: 0, y: 0, value: 3 }], 10);
  expect(surface[0]).toBeCloseTo(3);
  // The blur of one point is 0.3 of the side: 10 cells are more than 2.5 * 3 cells away.
  expect(surface.at(-1)).toBeNull();
});

test("rows go from the lowest to the highest y", () => {
  const surface = smoothSurface([{ x: 0.5, y: 0, value: 0 }, { x: 0.5, y: 1, value: 1 }], 11);
  const column = Array.from({ length: 11 }, (_, row) => surface[row * 11 + 5]!);
  expect(column[0]).toBeLessThan(0.1);
  expect(column[5]).toBeCloseTo(0.5);
  expect(column[10]).toBeGreaterThan(0.9);
});

test("points outside the square belong to its edge", () => {
  expect(smoothSurface([{ x: 2, y: -1, value: 1 }], 4)[3]).toBeCloseTo(1);
});
