import { expect, test } from "vitest";
import { isNewestFirst, orderOf } from "./order";

const of = (query: string) => orderOf(new URLSearchParams(query));

test("without an order the newest experiment is first", () => {
  expect(of("")).toEqual({ by: "id", descending: true });
  expect(isNewestFirst(of(""))).toBe(true);
  expect(isNewestFirst(of("sort=submitted"))).toBe(true);
  expect(isNewestFirst(of("sort=id&order=asc"))).toBe(false);
});

test("an order that the cluster does not have is none", () => {
  expect(of("sort=pool")).toEqual({ by: "id", descending: true });
  expect(of("sort=metric&order=asc")).toEqual({ by: "metric", descending: false });
});

test("a metric and a hyperparameter are orders", () => {
  expect(of("sort=metric:loss&order=asc")).toEqual({ by: "metric:loss", descending: false });
  expect(of("sort=hparam:optimizer.lr")).toEqual({ by: "hparam:optimizer.lr", descending: true });
  expect(of("sort=metric:")).toEqual({ by: "id", descending: true });
});
