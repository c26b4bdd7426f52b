import { expect, test } from "vitest";
import { atPace, measuredCost, slotCost, unitText } from "./estimate_cost";

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

test("an estimate at the measured pace takes the measured time of all slots", () => {
  const estimate = { units: 100, slots_per_trial: 2, slot_seconds: 80, makespan_seconds: 40, slots: 2 };
  // 100 units of 0.5 s on 2 slots each are 100 slot-seconds, 1.25 times as many as simulated.
  expect(atPace(estimate, 0.5)).toEqual({ ...estimate, slot_seconds: 100, makespan_seconds: 50 });
  expect(atPace({ ...estimate, slot_seconds: 0 }, 0.5).makespan_seconds).toBe(40);
});
