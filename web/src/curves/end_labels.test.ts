import { expect, test } from "vitest";
import { lastPlace, placeLabels } from "./end_labels";

const box = { right: 100, top: 0, bottom: 60, lineHeight: 12 };
const width = (text: string) => 10 * text.length;

test("labels that would overlap an earlier one are left out", () => {
  const labels = placeLabels([{ text: "1", x: 80, y: 30 }, { text: "2", x: 85, y: 36 }, { text: "3", x: 80, y: 43 }, { text: "4", x: 20, y: 30 }], width, box);
  // The second is 6 pixels below the first and begins before its end; the fourth is beside it.
  expect(labels.map(({ text }) => text)).toEqual(["1", "3", "4"]);
});

test("labels stay inside the chart", () => {
  // "long" is 40 wide and half a line from the edge is 6.
  expect(placeLabels([{ text: "long", x: 90, y: -5 }], width, box)).toEqual([{ text: "long", x: 60, y: 6 }]);
});

test("the last place is that of the last value in sight", () => {
  expect(lastPlace([[1, 2, 3], [5, undefined, null]], 0, 0, 3)).toBe(0);
  expect(lastPlace([[1, 2, 3], [5, 6, 7]], 0, 0, 2)).toBe(1);
  expect(lastPlace([[1, 2, 3], [5, undefined, null]], 0, 2, 3)).toBeNull();
});
