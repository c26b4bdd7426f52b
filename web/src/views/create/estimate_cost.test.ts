import { expect, test } from "vitest";
import { measuredCost, slotCost, unitText } from "./estimate_cost";

test("slot-time costs what the cheapest slots do", () => {
  // Two hours at 3 dollars.
  expect(slotCost(7200, [{ slot_price_per_hour: 4 }, { slot_price_per_hour: 3 }, { slot_price_per_hour: null }])).toBe(6);
});

test("without a price there is no cost", () => {
  expect(slotCost(7200, [])).toBeNull();
  expect(slotCost(7200, [{ slot_price_per_hour: null }])).toBeNull();
});

test("the measured cost is of the same unit", () => {
  const pace = { unit: "batches", cost_per_unit: 0.5 };
  expect(measuredCost(10, "batches", pace)).toBe(5);
  expect(measuredCost(10, "epochs", pace)).toBeNull();
  expect(measuredCost(10, "batches", { ...pace, cost_per_unit: null })).toBeNull();
  expect(measuredCost(10, "batches", null)).toBeNull();
  expect([unitText("batches"), unitText("rounds")]).toEqual(["batch", "rounds"]);
});
