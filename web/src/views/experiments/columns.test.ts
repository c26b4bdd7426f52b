import { expect, test } from "vitest";
import { hparamPaths } from "./column_choice";
import { columnsOf, sortKeys } from "./columns";

test("columns of values stand after the best curve", () => {
  expect(sortKeys(["metric:loss", "cost", "name", "curve", "hparam:lr"])).toEqual(["name", "curve", "metric:loss", "hparam:lr", "cost"]);
  expect(sortKeys(["metric:loss", "metric:loss", "unknown"])).toEqual(["metric:loss"]);
});

test("a column of values is titled and sorted by its name", () => {
  const [column] = columnsOf(["metric:a:b"]);
  expect([column?.title, column?.order]).toEqual(["a:b", "metric:a:b"]);
  expect(columnsOf(["unknown"])).toEqual([]);
});

test("the paths of hyperparameters end at constants and at searched values", () => {
  const space = { lr: { type: "log", base: 10 }, layers: [3, 3], optimizer: { name: "adam", "a.b": { type: "const", val: 1 } }, none: null };
  expect(hparamPaths(space)).toEqual(["lr", "layers", "optimizer.name", 'optimizer."a.b"', "none"]);
  expect(hparamPaths(undefined)).toEqual([]);
});
