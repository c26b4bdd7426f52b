/** The dots of a plane: a link each, which a keyboard reaches. Of many dots, the best alone are links, the others one path for each colour. */

import { BANDS, bandColour } from "./parallel";

export interface PlacedDot {
  key: number;
  left: number;
  top: number;
  href: string;
  label: string;
  isBest: boolean;
  /** 0 for the worst and 1 for the best trial, as the dot's colour. Without this, the dot has the colour of the accent. */
  quality?: number;
}

export const LINKS_MAX = 150;

export function Dots({ dots, radius }: { dots: PlacedDot[]; radius: number }) {
  const isFew = dots.length <= LINKS_MAX;
  // The best dots are drawn last, above the others.
  const linked = dots.filter(({ isBest }) => isFew || isBest).sort((a, b) => Number(a.isBest) - Number(b.isBest));
  return (
    <>
      {!isFew && pathsOf(dots.filter(({ isBest }) => !isBest)).map(([band, path]) => (
        <path key={band} class="dots" d={path} {...(band !== undefined && { stroke: bandColour(band) })} />
      ))}
      {linked.map(({ key, left, top, href, label, isBest, quality }) => (
        <a key={key} href={href} aria-label={label}>
          <circle cx={left} cy={top} r={isBest ? 1.5 * radius : radius} class={isBest ? "best" : ""} {...(quality !== undefined && { fill: bandColour(bandOf(quality)) })}>
            <title>{label}</title>
          </circle>
        </a>
      ))}
    </>
  );
}

/** The path of the dots of each band of quality, in order; undefined for dots without a quality. */
export function pathsOf(dots: readonly PlacedDot[]): [band: number | undefined, path: string][] {
  const paths = new Map<number | undefined, string>();
  for (const { quality, left, top } of dots) {
    const band = quality === undefined ? undefined : bandOf(quality);
    paths.set(band, `${paths.get(band) ?? ""}M${left.toFixed(1)} ${top.toFixed(1)}h0`);
  }
  return [...paths].sort(([a = 0], [b = 0]) => a - b);
}

export function bandOf(quality: number): number {
  return Math.min(BANDS - 1, Math.max(0, Math.floor(quality * BANDS)));
}
