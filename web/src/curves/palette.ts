/** Colours and dashes that tell curves apart, also for most who see few colours (Okabe and Ito 2008). */

// Each colour has a contrast of at least 3:1 with the background of its theme.
const LIGHT = ["#0072b2", "#d55e00", "#008a64", "#b8578f", "#957000", "#2a8fc4", "#8a63d2", "#717171"];
const DARK = ["#4ba3dc", "#f08a4b", "#3dbd92", "#d993bd", "#cdab3e", "#8cc8f0", "#ad94ec", "#a3a9af"];
// Of lines: none, and three kinds of dashes.
const DASHES: readonly (readonly number[])[] = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

export function curveColour(place: number, isDark = false): string {
  const colours = isDark ? DARK : LIGHT;
  return colours[place % colours.length]!;
}

/** The dashes of a curve: others once all colours were used, so that 32 curves differ. */
export function curveDashes(place: number): readonly number[] {
  return DASHES[Math.floor(place / LIGHT.length) % DASHES.length]!;
}
