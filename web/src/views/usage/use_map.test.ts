import { expect, test } from "vitest";
import { mapOfDays, wastedShare, type DayItem } from "./use_map";

function item(name: string, title: string, values: Partial<DayItem> = {}): DayItem {
  return { name, title, wasted: 0, instance_cost: 0, ...values };
}

test("pools without a day have an empty cell", () => {
  const items = [item("2026-11-02", "spot"), item("2026-11-01", "cloud"), item("2026-11-02", "cloud")];
  const { days, pools } = mapOfDays(items);
  expect(days).toEqual(["2026-11-01", "2026-11-02"]);
  expect(pools).toEqual([
    { pool: "cloud", cells: [items[1], items[2]] },
    { pool: "spot", cells: [undefined, items[0]] },
  ]);
});

test("no item makes no row", () => {
  expect(mapOfDays([])).toEqual({ days: [], pools: [] });
});

test("wasted share needs paid money", () => {
  expect(wastedShare(item("d", "p", { wasted: 1, instance_cost: 4 }))).toBe(0.25);
  expect(wastedShare(item("d", "p", { wasted: 1 }))).toBeNull();
  expect(wastedShare(item("d", "p", { wasted: 1, instance_cost: null }))).toBeNull();
});
