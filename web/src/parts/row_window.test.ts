import { expect, test } from "vitest";
import { bodyParts, rowWindow, WHOLE_MAX, type BodyPart } from "./row_window";

const HEIGHT = 32;

function drawnRows(parts: BodyPart[]): number[] {
  return parts.flatMap(({ first, end, gap }) => (gap === undefined ? Array.from({ length: end - first }, (_, n) => first + n) : []));
}

test("a short table is whole, and the rows in sight of a long one are always in its window", () => {
  expect(rowWindow(WHOLE_MAX, 50)).toEqual({ first: 0, end: WHOLE_MAX });
  for (let place = 0; place < 1000; place += 7) {
    const { first, end } = rowWindow(1000, place);
    expect(first).toBeLessThanOrEqual(place);
    // A region is at most 75 % of a screen high: some forty rows.
    expect(end).toBeGreaterThanOrEqual(Math.min(1000, place + 40));
    expect(end).toBeLessThanOrEqual(1000);
  }
});

test("the parts of a body are its rows once each, as high as all of them", () => {
  for (const count of [0, 1, WHOLE_MAX, 500]) {
    for (const place of [0, 200, 490]) {
      for (const kept of [null, -1, 0, 1, 199, 250, 498, 499, 500]) {
        const shown = rowWindow(count, place);
        const parts = bodyParts(count, shown, kept, HEIGHT);
        let end = 0;
        for (const part of parts) {
          expect(part.first).toBe(end);
          expect(part.end).toBeGreaterThan(part.first);
          if (part.gap !== undefined) expect(part.gap).toBe((part.end - part.first) * HEIGHT);
          end = part.end;
        }
        expect(end).toBe(count);
        const wanted = new Set(drawnRows([shown]));
        if (kept !== null && kept >= 0 && kept < count) wanted.add(kept);
        expect(drawnRows(parts)).toEqual([...wanted].sort((a, b) => a - b));
      }
    }
  }
});
