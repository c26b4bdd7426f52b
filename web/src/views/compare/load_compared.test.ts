import { expect, test } from "vitest";
import { METRICS_MAX, metricsQuery, readMetric, readMetrics } from "./load_compared";

const read = (changes: Record<string, string | null>) => {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(changes)) if (value !== null) query.set(name, value);
  return readMetrics(query);
};

test("metrics come back from an address as they were", () => {
  const [one, other] = [{ group: "a", name: 'b,"]' }, { group: "c: d", name: "" }];
  expect(read(metricsQuery([]))).toEqual([]);
  expect(read(metricsQuery([one]))).toEqual([one]);
  expect(read(metricsQuery([one, other]))).toEqual([one, other]);
});

test("an address that names no metrics names none", () => {
  for (const text of ["", "x", "1", "{}", "[1]", '[["a"]]', '[["", "b"]]', '[[1, 2]]']) expect(read({ metrics: text })).toEqual([]);
  expect(readMetric("x")).toBeNull();
  const many = Array.from({ length: 99 }, (_, n) => ["g", `m${n % 40}`]);
  expect(read({ metrics: JSON.stringify(many) })).toHaveLength(METRICS_MAX);
});
