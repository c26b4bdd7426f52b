/** Colours that can be told apart, also by most who see few of them (Okabe and Ito 2008). */

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#8a63d2", "#7f7f7f"];

export function curveColour(place: number): string {
  return COLOURS[place % COLOURS.length]!;
}
