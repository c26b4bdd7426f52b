import { expect, test } from "vitest";
import { rankImportance, ranks, type Sample } from "./importance";

function samples(rows: [Record<string, unknown>, number][]): Sample[] {
  return rows.map(([hparams, metric]) => ({ hparams, metric }));
}

test("equal values share the mean of their ranks", () => {
  expect(ranks([5, 1, 5, 9])).toEqual([1.5, 0, 1.5, 3]);
});

test("fewer than four samples tell nothing", () => {
  expect(rankImportance(samples([[{ a: 1 }, 1], [{ a: 2 }, 2], [{ a: 3 }, 3]]))).toEqual([]);
});

test("a monotone effect explains all of the order, also a curved or falling one", () => {
  const found = rankImportance(samples([[{ a: 1 }, 100], [{ a: 2 }, 10], [{ a: 3 }, 9], [{ a: 4 }, 1]]));
  expect(found).toEqual([{ name: "a", share: expect.closeTo(1, 12) }]);
});

test("groups that a word splits wholly explain what is between them", () => {
  // Ranks 0 1 2 3 with mean 1.5: squares 5 in all; groups of means 0.5 and 2.5: 2 * 1 + 2 * 1 = 4.
  const found = rankImportance(samples([[{ o: "a" }, 1], [{ o: "a" }, 2], [{ o: "b" }, 3], [{ o: "b" }, 4]]));
  expect(found).toEqual([{ name: "o", share: expect.closeTo(0.8, 12) }]);
});

test("what is the same everywhere is left out, and the most important comes first", () => {
  const rows: [Record<string, unknown>, number][] = [
    [{ a: 1, b: 1, c: 7 }, 1], [{ a: 2, b: 4, c: 7 }, 2], [{ a: 3, b: 2, c: 7 }, 3], [{ a: 4, b: 3, c: 7 }, 4],
  ];
  expect(rankImportance(samples(rows)).map(({ name }) => name)).toEqual(["a", "b"]);
});

test("a metric that never differs is explained by nothing", () => {
  const found = rankImportance(samples([[{ a: 1 }, 5], [{ a: 2 }, 5], [{ a: 3 }, 5], [{ a: 4 }, 5]]));
  expect(found).toEqual([{ name: "a", share: 0 }]);
});
