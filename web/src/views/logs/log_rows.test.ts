import { expect, test } from "vitest";
import type { LogLine } from "./log_line";
import { alignedRows, parseRanks, shownLines, type Row } from "./log_rows";

const UNFOLDED = { isFolded: false, others: new Set<string>() };

function line(offset: number, text: string, rank = 0, time_ms = 0): LogLine {
  return { offset, time_ms, rank, level: null, text };
}

const TRACEBACK = [
  line(0, "before"),
  line(10, "Traceback (most recent call last):"),
  line(20, '  File "a.py", line 1, in f'),
  line(30, "    f()"),
  line(40, "ValueError: x"),
];

test("a folded traceback keeps its first line and the exception", () => {
  expect(shownLines(TRACEBACK, UNFOLDED)).toHaveLength(5);
  const folded = shownLines(TRACEBACK, { isFolded: true, others: new Set() });
  expect(folded.map(({ line: { offset }, folded: hidden }) => [offset, hidden])).toEqual([[0, 0], [10, 2], [40, 0]]);
});

test("a single traceback is folded or unfolded against the rest", () => {
  expect(shownLines(TRACEBACK, { isFolded: true, others: new Set(["10"]) })).toHaveLength(5);
  expect(shownLines(TRACEBACK, { isFolded: false, others: new Set(["10"]) })).toHaveLength(3);
});

function table(rows: Row[]): string[] {
  return rows.map(({ cells }) => cells.map((cell) => cell?.line.text ?? "").join("|"));
}

test("lines of ranks stand beside the lines of the same second", () => {
  const lines = [
    line(0, "a0", 0, 1_000), line(1, "a1", 1, 1_500), line(2, "b1", 1, 1_900),
    line(3, "c1", 1, 2_000), line(4, "c0", 0, 2_999), line(5, "other", 7, 2_999), line(6, "d0", 0, 9_000),
  ];
  expect(table(alignedRows(shownLines(lines, UNFOLDED), [0, 1]))).toEqual(["a0|a1", "|b1", "c0|c1", "d0|"]);
});

test("a line that arrives late keeps its place in its rank", () => {
  const lines = [line(0, "a0", 0, 5_000), line(1, "late", 1, 1_000), line(2, "b1", 1, 6_000)];
  expect(table(alignedRows(shownLines(lines, UNFOLDED), [0, 1]))).toEqual(["a0|late", "|b1"]);
});

test("a list of ranks has at most four numbers", () => {
  expect(["", "2", "0, 1,1 3"].map(parseRanks)).toEqual([[], [2], [0, 1, 3]]);
  expect(["x", "1 -2", "0 1 2 3 4", "123456"].map(parseRanks)).toEqual([undefined, undefined, undefined, undefined]);
});
