import { expect, test } from "vitest";
import { axisPlaces, axisTexts, isWithin } from "./axes";

test("numbers lie by their size", () => {
  const axis = axisPlaces([2, 4, 3]);
  expect([2, 3, 4].map(axis.place)).toEqual([0, 0.5, 1]);
  expect([axis.isLog, axis.ends]).toEqual([false, [2, 4]]);
});

test("numbers over two decades lie by their logarithm", () => {
  const axis = axisPlaces([0.001, 0.1]);
  expect(axis.isLog).toBe(true);
  // A hundredth is halfway between a thousandth and a tenth.
  expect(axis.place(0.01)).toBeCloseTo(0.5, 12);
});

test("words lie in their order, and equal ones at one place", () => {
  const axis = axisPlaces(["b", "a", "b", true]);
  expect(axis.ends).toEqual(["a", "b", true]);
  expect(["a", "b", true].map(axis.place)).toEqual([0, 0.5, 1]);
  expect(axis.place("c")).toBeNull();
});

test("one value is in the middle, and a missing one nowhere", () => {
  expect(axisPlaces([7, 7]).place(7)).toBe(0.5);
  expect(axisPlaces(["x"]).place("x")).toBe(0.5);
  expect(axisPlaces([1, undefined]).place(undefined)).toBeNull();
});

test("a place of an axis is a value again, and a part of it has what lies between", () => {
  const log = axisPlaces([0.001, 0.1]);
  expect([log.value(0), log.value(0.5), log.value(1)].map((value) => (value as number).toPrecision(3))).toEqual(["0.00100", "0.0100", "0.100"]);
  expect([0.001, 0.01, 0.05].map((value) => isWithin(log, [0.002, 0.02], value))).toEqual([false, true, false]);
  const words = axisPlaces(["a", "b", "c"]);
  expect([words.value(0.1), words.value(0.6), words.value(2)]).toEqual(["a", "b", "c"]);
  expect(["a", "b", "c", undefined].map((value) => isWithin(words, ["b", "c"], value))).toEqual([false, true, true, false]);
});

test("a declared logarithmic scale needs no two decades, but positive numbers", () => {
  const axis = axisPlaces([0.001, 0.004], true);
  expect(axis.isLog).toBe(true);
  // Twice the least of values whose greatest is four times the least is halfway.
  expect(axis.place(0.002)).toBeCloseTo(0.5, 12);
  expect(axisPlaces([0, 4], true).isLog).toBe(false);
});

test("an axis has the texts of its ends, and of round numbers between them", () => {
  const texts = (axis: ReturnType<typeof axisPlaces>) => axisTexts(axis, 4, 14).map(({ text }) => text);
  expect(texts(axisPlaces([0.0012, 0.97]))).toEqual(["0.0012", "0.97", "0.01", "0.1"]);
  // 1 and 3 are too near to the ends.
  expect(texts(axisPlaces([0.95, 3.05]))).toEqual(["0.95", "3.05", "2"]);
  expect(texts(axisPlaces(["adam", "sgd"]))).toEqual(["adam", "sgd"]);
  expect(texts(axisPlaces([7, 7]))).toEqual(["7"]);
});

test("an axis of few repeated numbers has no texts of other numbers", () => {
  const axis = axisPlaces([8, 32, 16, 8, 8, 16]);
  expect(axisTexts(axis, 4, 14).map(({ text }) => text)).toEqual(["8", "32", "16"]);
});
