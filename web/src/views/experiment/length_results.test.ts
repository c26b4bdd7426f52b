import { expect, test } from "vitest";
import { lengthText, readLength } from "./length_results";

test("a length of an address is a whole number above 0", () => {
  expect(readLength("900")).toBe(900);
  for (const text of [null, "", "0", "-1", "1.5", "1e3", "9".repeat(16)]) expect(readLength(text)).toBeNull();
});

test("a length of 1 has its unit in the singular", () => {
  expect(["batches", "epochs", "records"].map((unit) => lengthText(1, unit))).toEqual(["1 batch", "1 epoch", "1 record"]);
  expect(lengthText(2, "batches")).toBe("2 batches");
});
