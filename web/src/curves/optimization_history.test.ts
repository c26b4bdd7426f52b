import { expect, test } from "vitest";
import { areSingleValues, searchCourse, type HistoryTrial } from "./optimization_history";

const trial = (number: number, metric: number | null, more: Partial<HistoryTrial> = {}): HistoryTrial =>
  ({ id: 100 + number, number, metric, batches: 10, createdMs: 0, endedMs: 1000 * (10 - number), cost: 0.5, ...more });

test("over trials, each trial is at its number and the best so far never gets worse", () => {
  const course = searchCourse([trial(0, 3), trial(1, null), trial(2, 5), trial(3, 1)], "trials", true, 0);
  expect(course.points).toEqual([[1, 3], [3, 5], [4, 1]]);
  expect(course.best).toEqual([[1, 3], [3, 3], [4, 1]]);
  expect([course.missing, course.trials.get(4)?.id]).toEqual([1, 103]);
});

test("over time, trials come in the order of their ends", () => {
  // Ends at 8 s and 10 s; the trial that has not ended is at 12 s.
  const course = searchCourse([trial(0, 1), trial(2, 2), trial(3, 4, { endedMs: null })], "time", false, 12_000);
  expect(course.points).toEqual([[8, 2], [10, 1], [12, 4]]);
  expect(course.best).toEqual([[8, 2], [10, 2], [12, 4]]);
});

test("over batches and dollars, places are sums, also of trials without an objective", () => {
  const trials = [trial(0, 1), trial(1, null, { batches: 7 }), trial(2, 2)];
  // In the order of their ends: 10, then 7 more, then 10 more.
  expect(searchCourse(trials, "batches", true, 0).points).toEqual([[10, 2], [27, 1]]);
  expect(searchCourse(trials, "cost", true, 0).points).toEqual([[0.5, 2], [1.5, 1]]);
});

test("trials at the same place are both kept", () => {
  const { points, trials } = searchCourse([trial(0, 1, { endedMs: 5000 }), trial(1, 2, { endedMs: 5000 })], "time", true, 0);
  expect(points).toEqual([[5, 1], [expect.closeTo(5, 6), 2]]);
  expect(trials.size).toBe(2);
});

test("trials that validate once have no curves", () => {
  expect(areSingleValues([{ total: 1 }, { total: 0 }, { total: 1 }])).toBe(true);
  expect(areSingleValues([{ total: 1 }, { total: 2 }])).toBe(false);
  expect(areSingleValues([{ total: 1 }])).toBe(false);
});
