import { expect, test } from "vitest";
import { heatCells, type PlanePoint } from "./heat_cells";

function points(rows: [unknown, unknown, number][]): PlanePoint[] {
  return rows.map(([x, y, metric], key) => ({ key, x, y, metric }));
}

test("a cell has the points of its bins and their mean", () => {
  // The root of 4 is 2: x is cut at 5, y at 1.
  const { cells, columns, rows } = heatCells(points([[0, 0, 1], [4, 0.5, 3], [5, 0, 8], [10, 2, 2]]), String);
  expect(cells.map(({ column, row, mean, points: own }) => [column, row, mean, own.length])).toEqual([
    [0, 0, 2, 2], [1, 0, 8, 1], [1, 1, 2, 1],
  ]);
  expect([columns.label(0), columns.label(1), rows.label(1)]).toEqual(["0 to 5", "5 to 10", "1 to 2"]);
});

test("over two decades bins are of one size by their exponents", () => {
  const { columns, cells } = heatCells(points([[1, 0, 1], [9, 0, 1], [11, 0, 1], [100, 0, 1]]), String);
  expect([columns.isLog, columns.label(0)]).toEqual([true, "1 to 10"]);
  expect(cells.map(({ column, points: own }) => [column, own.length])).toEqual([[0, 2], [1, 2]]);
});

test("words have a bin each, and a value that is the same everywhere one alone", () => {
  const { columns, rows, cells } = heatCells(points([["b", 7, 1], ["a", 7, 2], ["c", 7, 3]]), String);
  expect([0, 1, 2].map(columns.label)).toEqual(["a", "b", "c"]);
  expect([rows.count, rows.label(0)]).toEqual([1, "7"]);
  expect(cells.map(({ mean }) => mean)).toEqual([2, 1, 3]);
});

test("there are at most 12 bins of numbers", () => {
  const many = points(Array.from({ length: 1000 }, (_, n) => [n, n, n]));
  const { columns, cells } = heatCells(many, String);
  expect(columns.count).toBe(12);
  expect(cells.reduce((sum, { points: own }) => sum + own.length, 0)).toBe(1000);
  expect(cells.at(-1)!.column).toBe(11);
});

test("bins of a declared logarithmic scale are of one size by their exponents", () => {
  const { columns, rows } = heatCells(points([[1, 1, 1], [4, 4, 1]]), String, { x: true });
  expect([columns.label(0), rows.label(0)]).toEqual(["1 to 2", "1 to 2.5"]);
});
