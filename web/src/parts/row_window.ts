/** Which rows of a long table are in the document: those in sight and some around them. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";

// Shorter tables are whole, so that the browser's own search finds everything in them.
export const WHOLE_MAX = 120;
const SHOWN = 80;
const STEP = 20;
const HEIGHT_GUESS = 32;

export interface RowWindow {
  first: number;
  end: number;
  /** The heights of what is left out above and below, in pixels. */
  above: number;
  below: number;
}

/** The rows to have in the document where the row at `place` is the first in sight. */
export function rowWindow(count: number, place: number, height: number): RowWindow {
  if (count <= WHOLE_MAX) return { first: 0, end: count, above: 0, below: 0 };
  const wanted = Math.floor(place / STEP) * STEP - STEP;
  const first = Math.max(0, Math.min(wanted, count - SHOWN));
  const end = Math.min(count, first + SHOWN);
  return { first, end, above: first * height, below: (count - end) * height };
}

/** The window of a table's rows as its region scrolls; `body` is for the table's body. */
export function useRowWindow(count: number) {
  const body = useRef<HTMLTableSectionElement>(null);
  const [place, setPlace] = useState(0);
  const [height, setHeight] = useState(HEIGHT_GUESS);
  const shown = rowWindow(count, place, height);
  const isWhole = count <= WHOLE_MAX;
  useLayoutEffect(() => {
    if (isWhole || !body.current) return;
    const drawn = body.current.offsetHeight - shown.above - shown.below;
    const measured = drawn / (shown.end - shown.first);
    // Rows differ: what is left out is estimated, and a better estimate is worth a jump of its own only once.
    if (height === HEIGHT_GUESS && measured > 0) setHeight(measured);
  }, [isWhole, shown.first]);
  function onScroll(event: Event): void {
    if (isWhole) return;
    const next = Math.floor((event.currentTarget as HTMLElement).scrollTop / height / STEP) * STEP;
    if (next !== place) setPlace(next);
  }
  return { body, shown, isWhole, onScroll };
}
