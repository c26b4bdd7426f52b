import { expect, test } from "vitest";
import { FAST_MS, SLOW_MS, nextWaitMs } from "./pace";

const quiet = { lastMs: FAST_MS, changed: false, motion: "moving" as const, failures: 0 };

test("what changed is asked for again soon", () => {
  expect(nextWaitMs({ ...quiet, lastMs: SLOW_MS, changed: true })).toBe(FAST_MS);
});

test("what does not change is asked for ever less, at most every 30 s", () => {
  const waits: number[] = [FAST_MS];
  for (let n = 0; n < 20; n += 1) waits.push(nextWaitMs({ ...quiet, lastMs: waits.at(-1)! })!);
  expect(waits).toEqual([...waits].sort((a, b) => a - b));
  expect(waits.at(-1)).toBe(SLOW_MS);
});

test("what rests is asked for every 30 s at once, and what is still never", () => {
  expect(nextWaitMs({ ...quiet, motion: "resting", changed: true })).toBe(SLOW_MS);
  expect(nextWaitMs({ ...quiet, motion: "still", changed: true })).toBeNull();
});

test("failures are followed by longer waits", () => {
  const waits = [1, 2, 3, 9].map((failures) => nextWaitMs({ ...quiet, failures }));
  expect(waits).toEqual([2_000, 4_000, 8_000, SLOW_MS]);
});
