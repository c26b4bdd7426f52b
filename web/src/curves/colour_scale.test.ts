import { expect, test } from "vitest";
import { scaleColour } from "./colour_scale";
import { curveColour } from "./palette";

const BACKS = { light: "#ffffff", dark: "#171b20" };

function linear(colour: string): [number, number, number] {
  const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255);
  return parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)) as [number, number, number];
}

/** The contrast of two colours by WCAG 2.2. */
function contrast(one: string, other: string): number {
  const [a, b] = [one, other].map((colour) => {
    const [red, green, blue] = linear(colour);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
  }) as [number, number];
  return Math.max(a, b) / Math.min(a, b);
}

/** A colour as seen without one kind of cones (Machado, Oliveira and Fernandes 2009, severity 1). */
const MATRICES = {
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
};

function distance(one: string, other: string, matrix: number[][]): number {
  const [a, b] = [one, other].map((colour) => {
    const rgb = linear(colour);
    return lab(matrix.map((row) => row.reduce((sum, part, n) => sum + part * rgb[n]!, 0)) as [number, number, number]);
  }) as [number[], number[]];
  return Math.hypot(...a.map((part, n) => part - b[n]!));
}

function lab([red, green, blue]: [number, number, number]): number[] {
  const l = Math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue);
  const m = Math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue);
  const s = Math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue);
  return [0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s, 1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s, 0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s];
}

const places = Array.from({ length: 11 }, (_, n) => n / 10);

test.each(["light", "dark"] as const)("all colours are visible on the %s background", (theme) => {
  const isDark = theme === "dark";
  for (const place of places) expect(contrast(scaleColour(place, isDark), BACKS[theme]), `scale ${place}`).toBeGreaterThanOrEqual(3);
  for (let n = 0; n < 8; n += 1) expect(contrast(curveColour(n, isDark), BACKS[theme]), `colour ${n}`).toBeGreaterThanOrEqual(3);
});

test.each([false, true])("contrast rises along the scale, so that the best stands out (dark: %s)", (isDark) => {
  const back = isDark ? BACKS.dark : BACKS.light;
  const contrasts = places.map((place) => contrast(scaleColour(place, isDark), back));
  expect(contrasts).toEqual([...contrasts].sort((a, b) => a - b));
});

test.each(Object.entries(MATRICES))("a step of a tenth is visible with %s, and no step is far larger than another", (_, matrix) => {
  for (const isDark of [false, true]) {
    const steps = places.slice(1).map((place) => distance(scaleColour(place, isDark), scaleColour(place - 0.1, isDark), matrix));
    // One and a half times the just noticeable difference in OKLab, 0.02.
    expect(Math.min(...steps)).toBeGreaterThan(0.03);
    expect(Math.max(...steps) / Math.min(...steps)).toBeLessThan(2.2);
  }
});
