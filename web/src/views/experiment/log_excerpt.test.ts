import { expect, test } from "vitest";
import { logExcerpt } from "./log_excerpt";

test("a log with tracebacks is shown from the last one on", () => {
  const log = "step 1\nTraceback (most recent call last):\n  a\nKeyError\nagain\nTraceback (most recent call last):\n  b\nValueError: no\n";
  expect(logExcerpt(log)).toBe("Traceback (most recent call last):\n  b\nValueError: no");
});

test("the last twenty lines of a log without a traceback are shown", () => {
  const lines = Array.from({ length: 30 }, (_, n) => `line ${n}`);
  expect(logExcerpt(lines.join("\n")).split("\n")).toEqual(lines.slice(10));
});
