import { expect, test } from "vitest";
import { themeColour } from "./chart_colours";

test("a pair of colours gives the colour of the theme", () => {
  expect(themeColour(" light-dark(#ffffff, #14171a)", false)).toBe("#ffffff");
  expect(themeColour("light-dark(#ffffff, #14171a)", true)).toBe("#14171a");
  expect(themeColour("#123456", true)).toBe("#123456");
});
