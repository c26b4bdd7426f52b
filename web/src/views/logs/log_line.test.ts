import { expect, test } from "vitest";
import { joinLines, keyOf, shownText, type LogLine } from "./log_line";

function line(offset: number, text = `line ${offset}`): LogLine {
  return { offset, time_ms: null, rank: 0, level: null, text, unfinished: false };
}

test("a moving progress bar remains a single line", () => {
  const bar = { ...line(6, "\r 10%"), unfinished: true };
  // The unfinished text has five bytes.
  const joined = joinLines([line(0), bar], [line(11, "\r 20%\r 30%"), line(30)]);
  expect(joined.map(({ text }) => shownText(text))).toEqual(["line 0", " 30%", "line 30"]);
});

test("a line that does not continue an unfinished line is another line", () => {
  expect(joinLines([{ ...line(6, "\r 10%"), unfinished: true }], [line(50)])).toHaveLength(2);
});

test("a text without control characters is shown unchanged", () => {
  expect(["a b", "a\r", "\r", "a\rbc", "\x1b[1;31mred\x1b[0m", "\x1b]0;title\x07x"].map(shownText))
    .toEqual(["a b", "a", "", "bc", "red", "x"]);
});

test("lines of several trials have different keys", () => {
  expect([keyOf(line(3)), keyOf({ ...line(3), trial_id: 1 }), keyOf({ ...line(3), trial_id: 2 })]).toEqual(["3", "1-3", "2-3"]);
});
