import { expect, test } from "vitest";
import { bandOf, pathsOf } from "./dots";
import { BANDS } from "./parallel";

const dot = (left: number, quality?: number) => ({ key: left, left, top: 1, href: "", label: "", isBest: false, ...(quality !== undefined && { quality }) });

test("dots of a colour are one path, the worst colour first", () => {
  expect(pathsOf([dot(3, 1), dot(1, 0), dot(2, 0)])).toEqual([[0, "M1.0 1.0h0M2.0 1.0h0"], [BANDS - 1, "M3.0 1.0h0"]]);
  expect(pathsOf([dot(1), dot(2)])).toEqual([[undefined, "M1.0 1.0h0M2.0 1.0h0"]]);
});

test("a quality outside its range has the nearest band", () => {
  expect([bandOf(-1), bandOf(2)]).toEqual([0, BANDS - 1]);
});
