import { expect, test } from "vitest";
import { readRanges, writeRanges } from "./kept_ranges";

test("ranges come back from an address", () => {
  const ranges = new Map([["lr", [0.00123456789, 0.1]], ["net", ["a", "b"]]] as const);
  expect([...readRanges(writeRanges(ranges))]).toEqual([["lr", [0.00123457, 0.1]], ["net", ["a", "b"]]]);
  expect(writeRanges(new Map())).toBeNull();
});

test("what is no list of ranges is none", () => {
  for (const text of [null, "", "[", "7", "{}", '[["lr", 1]]', "[[1, 2, 3]]"]) expect([...readRanges(text)]).toEqual([]);
});
