import { expect, test } from "vitest";
import { bestTrials, trialProgress } from "./trials_part";

type Trial = Parameters<typeof trialProgress>[0];
const trial = (fields: Partial<Trial>) => ({ state: "ACTIVE", steps_completed: 0, target_steps: null, target_epochs: null, epochs_completed: null, ...fields }) as Trial;

test("the best trials come first, and trials without a metric are left out", () => {
  const trials = [3, null, 1, 2].map((metric, id) => ({ id, best_metric: metric }));
  expect(bestTrials(trials, true).map(({ id }) => id)).toEqual([2, 3, 0]);
  expect(bestTrials(trials, false).map(({ id }) => id)).toEqual([0, 3, 2]);
});

test("progress is the share of the known length", () => {
  expect(trialProgress(trial({ steps_completed: 25, target_steps: 100 }))).toBe(0.25);
  expect(trialProgress(trial({ steps_completed: 120, target_steps: 100 }))).toBe(1);
  expect(trialProgress(trial({ target_epochs: 4, epochs_completed: 1 }))).toBe(0.25);
  expect(trialProgress(trial({ steps_completed: 25 }))).toBeNull();
  expect(trialProgress(trial({ state: "COMPLETED" }))).toBe(1);
});
