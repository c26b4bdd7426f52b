/** Colours that can be told apart, also by most who see few of them (Okabe and Ito 2008). */

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#8a63d2", "#7f7f7f"];
// Of lines: none, and three kinds of dashes.
const DASHES: readonly (readonly number[])[] = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

export function curveColour(place: number): string {
  return COLOURS[place % COLOURS.length]!;
}

/** The dashes of a curve: others once all colours were used, so that 32 curves differ. */
export function curveDashes(place: number): readonly number[] {
  return DASHES[Math.floor(place / COLOURS.length) % DASHES.length]!;
}
