import { expect, test } from "vitest";
import type { LogLine } from "./log_line";
import { findTracebacks } from "./tracebacks";

function lines(...texts: (string | [number, string])[]): LogLine[] {
  return texts.map((text, offset) => {
    const [rank, shown] = typeof text === "string" ? [0, text] : text;
    return { offset, time_ms: null, rank, level: null, text: shown };
  });
}

function partsOf(...texts: (string | [number, string])[]): string[] {
  return findTracebacks(lines(...texts)).map((line) => (line ? `${line.head} ${line.part}` : ""));
}

const HEAD = "Traceback (most recent call last):";
const FRAME = '  File "/code/train.py", line 3, in <module>';

test("a traceback ends with the line of the exception", () => {
  expect(partsOf("before", HEAD, FRAME, "    main()", "    ^^^^^^", "ValueError: x", "  after"))
    .toEqual(["", "1 head", "1 frame", "1 source", "1 source", "1 raise", ""]);
});

test("chained tracebacks are separate", () => {
  const chained = "During handling of the above exception, another exception occurred:";
  expect(partsOf(HEAD, FRAME, "KeyError: 1", "", chained, "", HEAD, FRAME, "ValueError: 2"))
    .toEqual(["0 head", "0 frame", "0 raise", "", "", "", "6 head", "6 frame", "6 raise"]);
});

test("lines of other ranks may stand between the lines of a traceback", () => {
  expect(partsOf(HEAD, [1, HEAD], [1, FRAME], FRAME, [1, "KeyError: 1"], "ValueError: 2"))
    .toEqual(["0 head", "1 head", "1 frame", "0 frame", "1 raise", "0 raise"]);
});

test("a prefix of torchrun belongs to each line of a traceback", () => {
  const prefixed = [HEAD, FRAME, "    main()", "ValueError: x"].map((text) => `[rank0]: ${text}`);
  expect(partsOf(...prefixed)).toEqual(["0 head", "0 frame", "0 source", "0 raise"]);
});

test("the lines of an exception group belong to its traceback", () => {
  expect(partsOf(`  + Exception Group ${HEAD}`, `  | ${FRAME}`, "  | ExceptionGroup: two", "  +------", "after"))
    .toEqual(["0 head", "0 frame", "0 source", "0 source", "0 raise"]);
});

test("a traceback without an end has no exception yet", () => {
  expect(partsOf(HEAD, FRAME)).toEqual(["0 head", "0 frame"]);
});
