import { expect, test } from "vitest";
import { findChanges } from "./edit_dialog";
import { bytesText, dollarsText, durationText, numberText, stepsText } from "./format";
import { splitLabels } from "./labels";
import { parseMetadata } from "./metadata";
import { sortRows } from "./sorting";

test.each([
  [null, "–"], [0, "0"], [3, "3"], [0.1 + 0.2, "0.3"], [1.23456789e-5, "1.235e-5"], [12345678.9, "1.235e+7"], [NaN, "NaN"],
])("the number %s is %s", (value, text) => expect(numberText(value)).toBe(text));

test.each([[null, "–"], [0, "$0.00"], [0.0012, "$0.0012"], [12.345, "$12.35"]])(
  "%s dollars are %s", (value, text) => expect(dollarsText(value)).toBe(text));

test.each([[1023, "1023 B"], [1536, "1.5 KiB"], [5 * 1024 ** 3, "5.0 GiB"]])(
  "%s bytes are %s", (value, text) => expect(bytesText(value)).toBe(text));

test.each([[59_400, "59 s"], [61_000, "1 min 1 s"], [3_660_000, "1 h 1 min"], [180_000_000, "2 d 2 h"]])(
  "%s ms are %s", (value, text) => expect(durationText(value)).toBe(text));

test("steps are said with the target, in batches or in epochs", () => {
  expect(stepsText({ steps_completed: 45, target_steps: null, target_epochs: null, epochs_completed: null })).toBe("45");
  expect(stepsText({ steps_completed: 45, target_steps: 69, target_epochs: null, epochs_completed: null })).toBe("45 of 69");
  expect(stepsText({ steps_completed: 45, target_steps: null, target_epochs: 3, epochs_completed: 1.2857 })).toBe("45 (1.3 of 3 epochs)");
});

test("numbers are sorted as numbers, texts by their numbers, and what is missing comes last", () => {
  const sort = (values: (number | string | null)[], descending: boolean) => sortRows(values, (value) => value, descending);
  expect(sort([10, null, 9, NaN], false)).toEqual([9, 10, null, NaN]);
  expect(sort([10, null, 9], true)).toEqual([10, 9, null]);
  expect(sort(["a10", "a9"], false)).toEqual(["a9", "a10"]);
});

test("rows of equal values keep their order", () => {
  const rows = [["a", 1], ["b", 0], ["c", 1]] as const;
  expect(sortRows([...rows], ([, value]) => value, true).map(([name]) => name)).toEqual(["a", "c", "b"]);
});

test("labels are lines without the space around them, and no empty ones", () =>
  expect(splitLabels(" one \n\n two words\n")).toEqual(["one", "two words"]));

test("only what is other than it was is a change, an emptied field too", () => {
  const former = { name: "a", notes: "long", labels: ["x", "y"] };
  expect(findChanges(former, { name: "a", notes: "", labels: ["x", "y"] })).toEqual({ notes: "" });
  expect(findChanges(former, { ...former, labels: ["y", "x"] })).toEqual({ labels: ["y", "x"] });
});

test("metadata is an object of JSON, or says why it is none", () => {
  expect(parseMetadata(' {"a": {"b": [1]}} ')).toEqual({ a: { b: [1] } });
  expect(parseMetadata("  ")).toEqual({});
  expect(() => parseMetadata("{a: 1}")).toThrow("is not JSON");
  for (const text of ["[1]", "null", "3", '"text"']) expect(() => parseMetadata(text)).toThrow("must be an object");
});
