import { expect, test } from "vitest";
import { curveColour, curveDashes } from "./palette";

test("32 curves differ in colour or dashes, and the first are lines without gaps", () => {
  const looks = Array.from({ length: 32 }, (_, place) => `${curveColour(place)} ${curveDashes(place)}`);
  expect(new Set(looks).size).toBe(32);
  expect(curveDashes(7)).toEqual([]);
  expect(curveDashes(8)).not.toEqual([]);
});
