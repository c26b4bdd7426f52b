import { expect, test } from "vitest";
import type { LogLine } from "./log_line";
import { LINES_MAX } from "./log_window";
import type { Period } from "./period_reader";
import { SliceWindow, LATE_MS } from "./slice_window";

const signal = new AbortController().signal;
const BEGIN = 1_000_000_000;

function line(trial_id: number, time_ms: number, offset = time_ms): LogLine & { trial_id: number } {
  return { trial_id, offset, time_ms, rank: 0, level: null, text: `${trial_id} at ${time_ms}` };
}

/** A cluster with these lines, which answers in pages of `size`, trial after trial. */
function cluster(lines: (LogLine & { trial_id: number })[], size = 500) {
  const asked: Period[] = [];
  const load = async (period: Period) => {
    asked.push(period);
    const first = Number(period.cursor ?? 0);
    const found = lines
      .filter(({ time_ms: time }) => time! >= period.since_ms && time! <= (period.until_ms ?? Infinity))
      .sort((a, b) => a.trial_id - b.trial_id);
    const items = found.slice(first, first + size);
    return { items, next_cursor: first + size < found.length ? String(first + size) : null };
  };
  return { asked, load };
}

function timesOf({ lines }: { lines: readonly LogLine[] }): number[] {
  return lines.map(({ time_ms: time }) => time! - BEGIN);
}

test("the lines of all trials are shown in the order of time", async () => {
  const end = BEGIN + 30_000;
  const { load } = cluster([line(1, BEGIN + 5_000), line(2, BEGIN + 1_000), line(1, BEGIN + 9_000), line(3, BEGIN + 7_000)], 2);
  const state = await new SliceWindow(load, BEGIN, end).read(signal);
  expect(timesOf(state)).toEqual([1_000, 5_000, 7_000, 9_000]);
  expect(state).toMatchObject({ hasEarlier: false, hasLater: false, isOpen: false, isSearching: false });
});

test("periods without lines become longer until lines are found", async () => {
  const end = BEGIN + 10 * 24 * 3_600_000;
  const { asked, load } = cluster([line(1, BEGIN)]);
  const state = await new SliceWindow(load, BEGIN, end).read(signal);
  expect(timesOf(state)).toEqual([0]);
  // 1, 1, 4, 16, 64, 256, 1,024 and 4,096 minutes, and then a week.
  expect(asked.length).toBeLessThanOrEqual(10);
});

test("late lines of other trials get their place, and lines are shown once", async () => {
  const now = BEGIN + 30_000;
  const lines = [line(1, BEGIN + 20_000)];
  const { asked, load } = cluster(lines);
  const source = new SliceWindow(load, BEGIN, null, null, () => now);
  expect(timesOf(await source.read(signal))).toEqual([20_000]);
  lines.push(line(2, BEGIN + 10_000), line(2, BEGIN + 25_000));
  expect(timesOf(await source.read(signal))).toEqual([10_000, 20_000, 25_000]);
  await source.read(signal);
  // The newest line is at 25 s, which is less than LATE_MS after the first line.
  expect(25_000).toBeLessThan(LATE_MS);
  expect(asked.at(-1)!.until_ms).toBeUndefined();
});

test("a period with too many lines is read in shorter periods", async () => {
  const end = BEGIN + 60_000;
  const lines = Array.from({ length: LINES_MAX + 1_000 }, (_, n) => line(1, BEGIN + Math.floor(n * 60_000 / (LINES_MAX + 1_000)), n));
  const { load } = cluster(lines);
  const source = new SliceWindow(load, BEGIN, end);
  let state = await source.read(signal);
  for (let n = 0; n < 10 && state.lines.length === 0; n += 1) state = await source.read(signal);
  expect(state.lines.at(-1)!.offset).toBe(LINES_MAX + 999);
  expect(state.lines.length).toBeLessThanOrEqual(LINES_MAX);
  expect(state.hasEarlier).toBe(true);
});

test("the page holds a bounded number of lines, and reads the dropped lines again", async () => {
  const count = 3 * LINES_MAX;
  const end = BEGIN + count * 100;
  const { load } = cluster(Array.from({ length: count }, (_, n) => line(1, BEGIN + n * 100, n)));
  const source = new SliceWindow(load, BEGIN, end);
  let state = await source.read(signal);
  for (let n = 0; n < 100 && state.hasEarlier; n += 1) {
    source.want("earlier");
    state = await source.read(signal);
    expect(state.lines.length).toBeLessThanOrEqual(LINES_MAX);
  }
  expect([state.lines[0]!.offset, state.hasLater]).toEqual([0, true]);
  for (let n = 0; n < 100 && state.hasLater; n += 1) {
    source.want("later");
    state = await source.read(signal);
  }
  expect(state.lines.at(-1)!.offset).toBe(count - 1);
  const offsets = state.lines.map(({ offset }) => offset);
  expect(offsets).toEqual(Array.from({ length: offsets.length }, (_, n) => offsets[0]! + n));
});

test("the window opens at a line, and continues on both sides", async () => {
  const end = BEGIN + 4 * 3_600_000;
  const hours = [0, 1, 2, 3].map((hour) => BEGIN + hour * 3_600_000);
  const { asked, load } = cluster(hours.map((time) => line(1, time)));
  const source = new SliceWindow(load, BEGIN, end, hours[2]!);
  let state = await source.read(signal);
  expect(timesOf(state)).toEqual([2 * 3_600_000]);
  // A minute and the second before the line.
  expect(asked).toMatchObject([{ since_ms: hours[2]! - 1_000, until_ms: hours[2]! + 60_000 }]);
  expect(state).toMatchObject({ hasEarlier: true, hasLater: true, opening: 0, target: `1-${hours[2]}` });
  source.want("earlier");
  while (state.lines.length < 2) state = await source.read(signal);
  source.want("later");
  while (state.lines.length < 3) state = await source.read(signal);
  expect(timesOf(state)).toEqual([1, 2, 3].map((hour) => hour * 3_600_000));
  source.openAt(BEGIN);
  state = await source.read(signal);
  expect(timesOf(state)[0]).toBe(0);
  expect(state).toMatchObject({ hasEarlier: false, opening: 1, target: `1-${BEGIN}` });
  source.openAt(null);
  expect(timesOf(await source.read(signal)).at(-1)).toBe(3 * 3_600_000);
});

test("a window that opens before the first line finds it", async () => {
  const { load } = cluster([line(1, BEGIN + 3_600_000)]);
  const source = new SliceWindow(load, BEGIN, BEGIN + 4 * 3_600_000, BEGIN);
  let state = await source.read(signal);
  while (state.isSearching) state = await source.read(signal);
  expect(timesOf(state)).toEqual([3_600_000]);
});

test("periods begin and end at whole milliseconds", async () => {
  const { asked, load } = cluster(Array.from({ length: 20_000 }, (_, n) => line(1, BEGIN + n, n)));
  const source = new SliceWindow(load, BEGIN, BEGIN + 12 * 7 * 24 * 3_600_000);
  // Weeks without lines make the periods long, and very many lines in a few seconds make them short.
  let state = await source.read(signal);
  for (let n = 0; n < 30 && (n === 0 || state.isSearching); n += 1) state = await source.read(signal);
  const times = asked.flatMap(({ since_ms: since, until_ms: until }) => [since, until ?? 0]);
  expect(times.filter((time) => !Number.isInteger(time))).toEqual([]);
});
