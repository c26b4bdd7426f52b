import { expect, test } from "vitest";
import { BLOCK, blocksToDraw, drawnAround, shownBlocks } from "./log_blocks";

test("the last blocks are shown, or those around a line", () => {
  expect(shownBlocks(0, -1)).toEqual({ first: 0, end: 0 });
  expect(shownBlocks(BLOCK + 1, -1)).toEqual({ first: 0, end: 2 });
  expect(shownBlocks(100 * BLOCK, -1)).toEqual({ first: 80, end: 100 });
  expect(shownBlocks(100 * BLOCK, 50 * BLOCK + 3)).toEqual({ first: 40, end: 60 });
  expect(shownBlocks(100 * BLOCK, 0)).toEqual({ first: 0, end: 10 });
});

test("what is seen has no gap, and grows from the anchor until all is drawn", () => {
  const all = { first: 3, end: 9 };
  const drawn = new Set<number>();
  for (let seen = 1; seen <= 6; seen += 1) {
    const { first, end } = drawnAround(5, all, drawn);
    expect(end - first).toBe(seen);
    const [next] = blocksToDraw(5, all, drawn);
    if (next !== undefined) drawn.add(next);
  }
  expect(blocksToDraw(5, all, drawn)).toEqual([]);
});

test("drawn blocks behind one that is missing are not seen", () => {
  expect(drawnAround(9, { first: 0, end: 10 }, new Set([8, 6, 5]))).toEqual({ first: 8, end: 10 });
});
