import { expect, test } from "vitest";
import { budgetShare, latestMonths } from "./months";

test("months of two years have names, first days and last days", () => {
  expect(latestMonths(Date.UTC(2028, 1, 29, 23), 3)).toEqual([
    { name: "2028-02", title: "February 2028", since: "2028-02-01", until: "2028-02-29" },
    { name: "2028-01", title: "January 2028", since: "2028-01-01", until: "2028-01-31" },
    { name: "2027-12", title: "December 2027", since: "2027-12-01", until: "2027-12-31" },
  ]);
});

test("spent share may exceed 1, and is null without a budget", () => {
  expect(budgetShare(30, 20)).toBe(1.5);
  expect(budgetShare(30, null)).toBeNull();
});
