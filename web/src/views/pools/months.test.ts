import { expect, test } from "vitest";
import { budgetShare, latestMonths } from "./months";

test("months go back over the turn of a year, each from its first to its last day", () => {
  expect(latestMonths(Date.UTC(2028, 1, 29, 23), 3)).toEqual([
    { name: "2028-02", since: "2028-02-01", until: "2028-02-29" },
    { name: "2028-01", since: "2028-01-01", until: "2028-01-31" },
    { name: "2027-12", since: "2027-12-01", until: "2027-12-31" },
  ]);
});

test("more than the budget can be spent, and nothing of none", () => {
  expect(budgetShare(30, 20)).toBe(1.5);
  expect(budgetShare(30, null)).toBeNull();
});
