/**
 * A scale of colours for values, from yellow over magenta to blue. Lightness changes evenly in OKLab
 * (Ottosson 2020), so that equal steps look equal, also to people who see no red or no green. All
 * colours have a contrast of 3:1 with the background of each theme.
 */

interface Lab {
  lightness: number;
  a: number;
  b: number;
}

// The ends, and between them the colour to which the curve of colours is drawn. Both scales lead away from
// the background, so that the best values stand out in each theme.
const LIGHT: readonly [Lab, Lab, Lab] = [toLab(0.67, 0.15, 70), toLab(0.5, 0.15, 358), toLab(0.33, 0.16, 270)];
const DARK: readonly [Lab, Lab, Lab] = [toLab(0.56, 0.17, 268), toLab(0.73, 0.15, 350), toLab(0.9, 0.14, 95)];

/** The colour at a place from 0 to 1, as `#rrggbb`. 1 has the strongest contrast. */
export function scaleColour(place: number, isDark: boolean): string {
  const [from, control, to] = isDark ? DARK : LIGHT;
  const share = Math.min(1, Math.max(0, place));
  const mix = (key: keyof Lab) => (1 - share) ** 2 * from[key] + 2 * share * (1 - share) * control[key] + share ** 2 * to[key];
  return toHex({ lightness: mix("lightness"), a: mix("a"), b: mix("b") });
}

/** A colour of OKLCH, with its hue in degrees. */
function toLab(lightness: number, chroma: number, hue: number): Lab {
  const angle = (hue * Math.PI) / 180;
  return { lightness, a: chroma * Math.cos(angle), b: chroma * Math.sin(angle) };
}

function toHex({ lightness, a, b }: Lab): string {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return `#${linear.map((part) => Math.round(255 * encodeGamma(Math.min(1, Math.max(0, part)))).toString(16).padStart(2, "0")).join("")}`;
}

function encodeGamma(linear: number): number {
  return linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055;
}
