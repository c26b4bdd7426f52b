import { expect, test } from "vitest";
import { failureText, logExcerpt, reasonOf } from "./log_excerpt";

test("a log with tracebacks is shown from the last one on", () => {
  const log = "step 1\nTraceback (most recent call last):\n  a\nKeyError\nagain\nTraceback (most recent call last):\n  b\nValueError: no\n";
  expect(logExcerpt(log)).toBe("Traceback (most recent call last):\n  b\nValueError: no");
});

test("the last twenty lines of a log without a traceback are shown", () => {
  const lines = Array.from({ length: 30 }, (_, n) => `line ${n}`);
  expect(logExcerpt(lines.join("\n")).split("\n")).toEqual(lines.slice(10));
});

test("a reason is what a message says before it quotes a log", () => {
  expect(reasonOf("ended with exit code 1; the end of its log:\nTraceback\n")).toBe("ended with exit code 1");
  expect(reasonOf("no agent has 8 slots")).toBe("no agent has 8 slots");
});

test("a failure in one line has the reason and the exception", () => {
  const message = "ended with exit code 1; the end of its log:\nTraceback\n  File\nValueError: no data\n";
  expect(failureText(message)).toBe("ended with exit code 1: ValueError: no data");
  expect(failureText("ended with exit code 1; the end of its log: bad")).toBe("ended with exit code 1; the end of its log: bad");
  expect(failureText("no agent\nhas 8 slots")).toBe("no agent\nhas 8 slots");
});
