import { expect, test } from "vitest";
import { forkConfig, forkTrialConfig, submittedConfig } from "./fork";
import { toYaml } from "./yaml";

test("nested values are indented, and what YAML would read otherwise is quoted", () => {
  const config = { name: "on", list: ["a b", { x: 1, z: [] }], e: 1e-7, "a: b": null, t: "1.5", nested: [[1, 2]] };
  expect(toYaml(config)).toBe(`name: "on"
list:
  - a b
  - x: 1
    z: []
e: 1.0e-7
"a: b": null
t: "1.5"
nested:
  - - 1
    - 2
`);
});

test("a fork says nothing of what is empty", () => {
  expect(forkConfig({ name: "a", labels: [], data: {}, template: null, description: "", debug: false, max: 0 })).toEqual({
    name: "a", debug: false, max: 0,
  });
});

test("the fork of a trial is one trial with its hyperparameters, as long as its search's", () => {
  const searcher = { name: "adaptive_asha", metric: "loss", smaller_is_better: false, max_length: { batches: 9 }, max_trials: 20 };
  const fork = forkTrialConfig({ name: "a", searcher, hyperparameters: { x: { type: "int" } } }, { x: 3 });
  expect(fork).toEqual({
    name: "a",
    searcher: { name: "single", metric: "loss", smaller_is_better: false, max_length: { batches: 9 } },
    hyperparameters: { x: 3 },
  });
});

test("a fork has the submitted values, or from an older cluster the whole configuration", () => {
  const config = { name: "a", labels: [], max_restarts: 5 };
  expect(submittedConfig({ config, submitted_config: { name: "a" } })).toEqual({ name: "a" });
  expect(submittedConfig({ config })).toEqual({ name: "a", max_restarts: 5 });
});
