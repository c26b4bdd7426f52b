import { expect, test } from "vitest";
import { axisTicks, exactNumber, linearTicks, logTicks, tickTexts } from "./ticks";

test("a small value keeps all its digits", () => {
  // A quarter of 0.05 is 0.0125; with 4 decimals all ticks are exact.
  expect(tickTexts([0, 0.0125, 0.025, 0.0375, 0.05])).toEqual(["0", "0.0125", "0.0250", "0.0375", "0.0500"]);
  expect(exactNumber(0.0125)).toBe("0.0125");
});

test("linear ticks are multiples of 1, 2 or 5 within the range", () => {
  // 0.35 / 4 = 0.0875, so the step is 0.1.
  expect(linearTicks(0.02, 0.37, 4)).toEqual([0.1, 0.2, 0.3]);
  // Sums of 0.1 would give 0.30000000000000004.
  expect(linearTicks(0, 0.3, 3)).toEqual([0, 0.1, 0.2, 0.3]);
  expect(linearTicks(-3, 3, 3)).toEqual([-2, 0, 2]);
  expect(linearTicks(5, 5, 4)).toEqual([5]);
});

test("logarithmic ticks are powers of ten, with 2 and 5 over few decades", () => {
  expect(logTicks(1e-4, 1, 6)).toEqual([1e-4, 1e-3, 1e-2, 0.1, 1]);
  expect(logTicks(0.01, 0.6, 6)).toEqual([0.01, 0.02, 0.05, 0.1, 0.2, 0.5]);
  // 12 decades and 6 ticks: every second one.
  expect(logTicks(1e-12, 1, 6)).toEqual([1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1]);
  // No 1, 2 or 5 lies between 3 and 4.
  expect(logTicks(3, 4, 4)).toEqual([3, 3.5, 4]);
  expect(logTicks(0, 1, 4)).toEqual([]);
});

test("very large and very small numbers have an exponent", () => {
  expect(tickTexts([0, 2e6, 4e6])).toEqual(["0", "2e6", "4e6"]);
  expect(tickTexts([0, 2e-5])).toEqual(["0", "2e-5"]);
});

test("durations have round ticks without zeros", () => {
  // Three hours and four ticks: a step of an hour.
  expect(axisTicks("elapsed", 0, 10_800, 4).map(({ text }) => text)).toEqual(["0 s", "1 h", "2 h", "3 h"]);
  expect(axisTicks("elapsed", 0, 90, 3).map(({ text }) => text)).toEqual(["0 s", "30 s", "1 min", "1 min 30 s"]);
});

test("an axis without data has no ticks", () => {
  expect(axisTicks("number", Infinity, -Infinity, 4)).toEqual([]);
});

test("a narrow chart has two ticks at least", () => {
  // Of the steps for three ticks, 5 is the only multiple between 1 and 8.
  expect(linearTicks(1, 8, 3)).toEqual([2, 4, 6, 8]);
});
