import { expect, test } from "vitest";
import { foundReports } from "./palette";

test("reports are found by a part of the title, in any case", () => {
  const reports = [{ id: 3, title: "Learning rates" }, { id: 4, title: "Widths" }];
  expect(foundReports(reports, "RATE")).toEqual([{ title: "Report 3: Learning rates", href: "#/reports/3" }]);
  expect(foundReports(reports, "depth")).toEqual([]);
});
