/** The colours of qualities, from the worst to the best, with a word at each end. */

import { BANDS, bandColour } from "../../curves/parallel";

export function ColourScale({ low, high }: { low: string; high: string }) {
  return (
    <span class="quiet">
      {low}{" "}
      <svg width={BANDS * 8} height="10" aria-hidden="true">
        {Array.from({ length: BANDS }, (_, band) => <rect key={band} x={band * 8} width="8" height="10" fill={bandColour(band)} />)}
      </svg>{" "}
      {high}
    </span>
  );
}
