import { expect, test } from "vitest";
import { ErrorIndex, errorBeside, errorsUntil, findError, isSameError } from "./error_index";
import type { LogLine } from "./log_line";
import type { Place } from "./log_window";

const signal = new AbortController().signal;

function line(offset: number, text: string, rank = 0): LogLine & { rank: number; unfinished: boolean } {
  return { offset, time_ms: null, rank, level: "ERROR", text, unfinished: false };
}

test("errors of all pages are counted, and later errors of a growing log", async () => {
  const asked: (string | undefined)[] = [];
  const pages = [
    { items: [line(0, "ERROR: a")], next_cursor: "x", complete: false },
    { items: [], next_cursor: "y", complete: false },
    { items: [], next_cursor: "y", complete: false },
    { items: [line(70, "ERROR: b")], next_cursor: null, complete: true },
  ];
  const index = new ErrorIndex(async ({ after }) => {
    asked.push(after);
    return { ...pages[asked.length - 1]!, previous: null, size: 100 };
  });
  expect(await index.read(signal)).toEqual({ offsets: [0], isComplete: true, isOpen: true });
  expect(await index.read(signal)).toEqual({ offsets: [0, 70], isComplete: true, isOpen: false });
  expect(asked).toEqual([undefined, "x", "y", "y"]);
});

test("a traceback with its log line and its exception is one error", () => {
  const logged = line(10, "ERROR: failed");
  // 10 + 13 bytes and the line break.
  const head = line(24, "Traceback (most recent call last):");
  const raised = line(200, "ValueError: x");
  expect(isSameError(logged, head)).toBe(true);
  expect(isSameError(line(10, "ERROR: another"), line(500, head.text))).toBe(false);
  expect(isSameError(head, raised)).toBe(true);
  expect(isSameError(head, line(300, head.text))).toBe(false);
  expect(isSameError(raised, line(260, "ERROR: next"))).toBe(false);
  expect(isSameError(undefined, raised)).toBe(false);
});

const TRACEBACKS = [
  line(10, "Traceback (most recent call last):"), line(200, "KeyError: 1"),
  line(300, "Traceback (most recent call last):"), line(500, "ValueError: 2"),
];

/** Loads these lines, two a page. */
async function loadTwo({ at, after, before, limit }: Place) {
  expect(limit).toBeGreaterThan(2);
  const from = Number(after ?? at ?? 0);
  const found = TRACEBACKS.filter(({ offset }) => (before === undefined ? offset >= from : offset < before));
  const items = before === undefined ? found.slice(0, 2) : found.slice(-2);
  const isEnd = found.length <= 2;
  return { items, next_cursor: isEnd ? null : String(items[1]!.offset + 1), complete: isEnd, previous: isEnd ? null : items[0]!.offset, size: 600 };
}

test("the search in the log goes from the first line of an error to that of another", async () => {
  const next = (from: number) => findError(loadTwo, from, true, signal);
  const previous = (from: number) => findError(loadTwo, from, false, signal);
  expect(await Promise.all([-1, 10, 200, 300].map(next))).toEqual([10, 300, 300, null]);
  expect(await Promise.all([600, 300, 10].map(previous))).toEqual([300, 10, null]);
});

test("the errors beside a line are found", () => {
  const offsets = [10, 20, 30];
  expect([errorBeside(offsets, 20, true), errorBeside(offsets, 20, false)]).toEqual([2, 0]);
  expect([errorBeside(offsets, 30, true), errorBeside(offsets, 10, false)]).toEqual([-1, -1]);
  expect([5, 20, 99].map((offset) => errorsUntil(offsets, offset))).toEqual([0, 2, 3]);
});
