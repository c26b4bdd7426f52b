import { expect, test } from "vitest";
import { offeredUnits, placePoints, readUnit, timeRange } from "./x_axis";

const RAW = [[10, 0.5, 2_000], [20, 0.25, null], [30, "NaN", 5_000]];

test("points lie over each unit", () => {
  const scale = { batchSize: 4, recordsPerEpoch: 80, startedMs: 1_000 };
  expect(placePoints(RAW, "batches", scale)).toEqual([[10, 0.5], [20, 0.25], [30, null]]);
  // 10 batches of 4 records are 40 of the 80 of an epoch.
  expect(placePoints(RAW, "records", scale).map(([x]) => x)).toEqual([40, 80, 120]);
  expect(placePoints(RAW, "epochs", scale).map(([x]) => x)).toEqual([0.5, 1, 1.5]);
  expect(placePoints(RAW, "elapsed", scale)).toEqual([[1, 0.5], [4, null]]);
  expect(placePoints(RAW, "time", scale).map(([x]) => x)).toEqual([2, 5]);
});

test("where nobody knows when the trial began, its first report is at 0", () => {
  expect(placePoints(RAW, "elapsed", { startedMs: null }).map(([x]) => x)).toEqual([0, 3]);
  expect(placePoints(RAW, "elapsed", { startedMs: 3_000 }).map(([x]) => x)).toEqual([0, 3]);
});

test("a unit is offered where the configuration has what it takes", () => {
  expect(offeredUnits({ hyperparameters: {} })).toEqual(["batches", "elapsed", "time"]);
  expect(offeredUnits({ records_per_epoch: 5, hyperparameters: { global_batch_size: 2 } })).toHaveLength(5);
  expect(readUnit("epochs", ["batches", "time"])).toBe("batches");
  expect(readUnit("time", ["batches", "time"])).toBe("time");
});

test("one point in time is shown with the minutes beside it", () => {
  // A minute before and a minute after.
  expect(timeRange([1_800_000_000], "time")).toEqual({ min: 1_799_999_940, max: 1_800_000_060 });
  expect(timeRange([1_800_000_000, 1_800_000_001], "time")).toBeNull();
  expect(timeRange([7], "batches")).toBeNull();
  expect(timeRange([], "time")).toBeNull();
});
