import { expect, test } from "vitest";
import { lineText, mergedText } from "./merged_text";
import { PeriodReader, readAllLines, type Period } from "./period_reader";

const { signal } = new AbortController();
const PER_MS = 4;
const DAY_MS = 24 * 3_600_000;

/** `count` lines of trials 2 and 1 in turn, PER_MS each millisecond from `begin` on. */
function cluster(begin: number, count: number) {
  const asked: Period[] = [];
  const load = async (period: Period) => {
    asked.push(period);
    const first = PER_MS * Math.max(0, period.since_ms - begin);
    const end = Math.min(count, PER_MS * ((period.until_ms ?? Infinity) - begin + 1));
    const numbers = Array.from({ length: Math.max(0, end - first) }, (_, n) => first + n);
    const items = numbers.map((n) => ({ trial_id: 2 - (n % 2), offset: n, time_ms: begin + Math.floor(n / PER_MS), rank: 0, level: null, text: `line ${n}` }));
    items.sort((a, b) => a.trial_id - b.trial_id);
    const at = Number(period.cursor ?? 0);
    return { items: items.slice(at, at + 500), next_cursor: at + 500 < items.length ? String(at + 500) : null };
  };
  return { asked, load };
}

test("all periods begin and end at whole milliseconds", async () => {
  const { asked, load } = cluster(20 * DAY_MS, 12_000);
  const reader = new PeriodReader(load, 100);
  // Weeks without lines, and then as many lines as make the periods as short as possible.
  for (let week = 0; week < 12; week += 1) await reader.read({ since_ms: 0, until_ms: reader.length }, signal);
  expect(reader.length).toBe(7 * DAY_MS);
  while (reader.length > 1_000) expect(await reader.read({ since_ms: 20 * DAY_MS, until_ms: 20 * DAY_MS + reader.length + 2_000 }, signal)).toBeUndefined();
  expect(asked.flatMap(({ since_ms: since, until_ms: until }) => [since, until!]).filter((one) => !Number.isInteger(one))).toEqual([]);
});

test("all lines are read once in the order of time, also of seconds with very many", async () => {
  const { load } = cluster(DAY_MS, 9_000);
  const read: number[] = [];
  for await (const lines of readAllLines(load, 0, 2 * DAY_MS, signal)) read.push(...lines.map(({ offset }) => offset));
  // Within a millisecond, lines are in the order of trials.
  expect(read.map((n) => Math.floor(n / PER_MS))).toEqual(Array.from({ length: 9_000 }, (_, n) => Math.floor(n / PER_MS)));
  expect(new Set(read).size).toBe(9_000);
});

test("the text has the lines as the command line prints them with times", async () => {
  const { load } = cluster(1_000, 2);
  let text = "";
  for await (const piece of mergedText(load, 0, 5_000, signal)) text += piece;
  expect(text).toBe("[1970-01-01T00:00:01.000Z] [rank=0] [trial 1] line 1\n[1970-01-01T00:00:01.000Z] [rank=0] [trial 2] line 0\n");
  expect(lineText({ trial_id: 3, offset: 0, time_ms: 0, rank: 1, level: "ERROR", text: "x" })).toBe("[1970-01-01T00:00:00.000Z] [rank=1] ERROR [trial 3] x\n");
});

test("a stopped reading ends with an error", async () => {
  const control = new AbortController();
  const { load } = cluster(0, 10);
  control.abort();
  await expect(async () => { for await (const _ of readAllLines(load, 0, 10, control.signal)); }).rejects.toThrow();
});
