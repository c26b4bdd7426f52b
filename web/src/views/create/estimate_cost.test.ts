import { expect, test } from "vitest";
import { slotCost } from "./estimate_cost";

test("slot-time costs what the cheapest slots do", () => {
  // Two hours at 3 dollars.
  expect(slotCost(7200, [{ slot_price_per_hour: 4 }, { slot_price_per_hour: 3 }, { slot_price_per_hour: null }])).toBe(6);
});

test("without a price there is no cost", () => {
  expect(slotCost(7200, [])).toBeNull();
  expect(slotCost(7200, [{ slot_price_per_hour: null }])).toBeNull();
});
