import { expect, test } from "vitest";
import { linePlace, placeText, type LogLine } from "./log_line";
import { findMergedError } from "./merged_errors";
import type { Period } from "./period_reader";

const { signal } = new AbortController();
const BEGIN = 1_000_000_000;
const END = BEGIN + 3_600_000;
const HEAD = "Traceback (most recent call last):";

function line(trial: number, after: number, text: string) {
  return { trial_id: trial, offset: after, time_ms: BEGIN + after, rank: 0, level: "ERROR", text };
}

// Two tracebacks at once, a logged error half an hour later, and a third traceback.
const LINES = [
  line(1, 10, HEAD), line(2, 20, HEAD), line(1, 30, "KeyError: 1"), line(2, 40, "KeyError: 2"),
  line(2, 1_800_000, "ERROR: no memory"), line(1, 3_000_000, HEAD), line(1, 3_000_900, "ValueError: 3"),
];

async function load({ since_ms: since, until_ms: until, cursor }: Period) {
  const found = LINES.filter(({ time_ms: time }) => time >= since && time <= until!).sort((a, b) => a.trial_id - b.trial_id);
  const first = Number(cursor ?? 0);
  return { items: found.slice(first, first + 2), next_cursor: first + 2 < found.length ? String(first + 2) : null };
}

async function find(from: LogLine, isNext: boolean): Promise<number | null> {
  const found = await findMergedError(load, { begin: BEGIN, end: END }, from, isNext, signal);
  if ("reachedMs" in found) throw new Error(`reached ${found.reachedMs}`);
  return found.line && found.line.offset;
}

test("the next error is the first line of an error of any trial", async () => {
  const [one, two, , , three, four] = LINES;
  expect(await find(line(1, 0, ""), true)).toBe(10);
  expect(await find(one!, true)).toBe(20);
  expect(await find(two!, true)).toBe(three!.offset);
  expect(await find(three!, true)).toBe(four!.offset);
  expect(await find(four!, true)).toBeNull();
});

test("the previous error is the first line of an error, also over the edge of a period", async () => {
  const [one, two, , , three, four] = LINES;
  expect(await find(line(9, 3_600_000, ""), false)).toBe(four!.offset);
  // The first period back begins between the head and the exception of the third traceback.
  expect(await find(line(9, 3_000_900 + 60_000 - 500, ""), false)).toBe(four!.offset);
  expect(await find(four!, false)).toBe(three!.offset);
  expect(await find(three!, false)).toBe(two!.offset);
  expect(await find(two!, false)).toBe(one!.offset);
  expect(await find(one!, false)).toBeNull();
});

test("a long search says how far it came", async () => {
  const never = async () => ({ items: [], next_cursor: "more" });
  const found = await findMergedError(never, { begin: BEGIN, end: END }, line(1, 0, ""), true, signal);
  expect(found).toEqual({ reachedMs: expect.any(Number) });
});

test("an address names a line of several logs", () => {
  const [one] = LINES;
  expect(linePlace(placeText(one!))).toEqual({ trial_id: 1, offset: 10, time_ms: BEGIN + 10 });
  for (const text of [null, "", "812", "1-0-5", "1-2-x", "1-2-3-4"]) expect(linePlace(text)).toBeNull();
});
