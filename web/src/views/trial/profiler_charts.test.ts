import { expect, test } from "vitest";
import { profilerCharts, unitOf } from "./profiler_charts";

function named(group: string, ...names: string[]): { group: string; name: string }[] {
  return names.map((name) => ({ group, name }));
}

test("what is measured alike shares a chart, in order of numbers", () => {
  const names = [...named("gpu", "gpu_util_10", "gpu_util_2", "gpu_free_memory_2"), ...named("cpu", "cpu_util_simple")];
  expect(profilerCharts(names)).toEqual([
    { group: "cpu", title: "Processors in use (%)", names: ["cpu_util_simple"] },
    { group: "gpu", title: "GPUs in use (%)", names: ["gpu_util_2", "gpu_util_10"] },
    { group: "gpu", title: "Free memory of GPUs (GiB)", names: ["gpu_free_memory_2"] },
  ]);
});

test("other names of a machine's groups have charts of their own, other groups have none", () => {
  expect(profilerCharts([...named("memory", "resident"), ...named("training", "loss")])).toEqual([
    { group: "memory", title: "memory: resident", names: ["resident"] },
  ]);
});

test("the axis has the unit of the title", () => {
  expect(unitOf("GPUs in use (%)")).toBe("%");
  expect(unitOf("gpu: temperature")).toBe("");
});
