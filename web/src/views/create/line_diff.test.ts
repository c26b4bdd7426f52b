import { expect, test } from "vitest";
import { diffLines } from "./line_diff";

const shown = (before: string, after: string) => diffLines(before, after).map(({ sign, text }) => sign + text);

test("equal texts have no difference", () => {
  expect(diffLines("a\nb\n", "a\nb\n")).toEqual([]);
});

test("changed lines stand between three equal lines, and the others are counted", () => {
  const before = ["1", "2", "3", "4", "5", "x", "6", "7", "8", "9"].join("\n");
  expect(shown(before, before.replace("x", "y\nz"))).toEqual([
    "@2 equal lines", " 3", " 4", " 5", "-x", "+y", "+z", " 6", " 7", " 8", "@1 equal line",
  ]);
});

test("added and removed lines at both ends are found", () => {
  expect(shown("a\nb\n", "b\nc\n")).toEqual(["-a", " b", "+c"]);
  expect(shown("", "a\n")).toEqual(["+a"]);
  expect(shown("a\na\n", "a\n")).toEqual([" a", "-a"]);
});

test("texts with too many different lines are replaced as a whole", () => {
  const many = (sign: string) => Array.from({ length: 2_100 }, (_, n) => `${sign}${n}`).join("\n");
  const lines = diffLines(many("a"), many("b"));
  expect([lines.length, lines[0]!.sign, lines.at(-1)!.sign]).toEqual([4_200, "-", "+"]);
});
