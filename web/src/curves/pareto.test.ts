import { expect, test } from "vitest";
import { paretoFront } from "./pareto";

const point = (x: number, y: number) => ({ x, y });

test("what another is better than in both is not on the front", () => {
  const points = [point(1, 5), point(2, 3), point(3, 4), point(4, 1), point(2, 3), point(1, 6)];
  expect(paretoFront(points, { x: true, y: true })).toEqual([true, true, false, true, true, false]);
});

test("the larger is better where it is said so", () => {
  const points = [point(0.1, 0.9), point(0.2, 0.95), point(0.3, 0.8)];
  // Loss and accuracy: the third is worse in both.
  expect(paretoFront(points, { x: true, y: false })).toEqual([true, true, false]);
  expect(paretoFront(points, { x: false, y: false })).toEqual([false, true, true]);
  expect(paretoFront([], { x: true, y: true })).toEqual([]);
});

test("each point of the front is better than no other, by definition", () => {
  const points = Array.from({ length: 60 }, (_, n) => point((n * 37) % 11, (n * 53) % 13));
  const front = paretoFront(points, { x: true, y: true });
  points.forEach((one, n) => {
    const isBeaten = points.some((other) => other.x <= one.x && other.y <= one.y && (other.x < one.x || other.y < one.y));
    expect(front[n]).toBe(!isBeaten);
  });
});
