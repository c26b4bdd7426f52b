/** Which rows of a long table are in the document: those in sight and some around them. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";

// Shorter tables are whole, so that the browser's own search finds everything in them.
export const WHOLE_MAX = 120;
const SHOWN = 80;
const STEP = 20;
const HEIGHT_GUESS = 32;

/** The rows from `first` on, without `end`. */
export interface RowWindow {
  first: number;
  end: number;
}

/** A part of a table's body: some rows, or in their place so many pixels. */
export type BodyPart = RowWindow & { gap?: number };

/** The rows to have in the document where the row at `place` is the first in sight. */
export function rowWindow(count: number, place: number): RowWindow {
  if (count <= WHOLE_MAX) return { first: 0, end: count };
  const wanted = Math.floor(place / STEP) * STEP - STEP;
  const first = Math.max(0, Math.min(wanted, count - SHOWN));
  return { first, end: Math.min(count, first + SHOWN) };
}

/**
 * The parts of the body from top to bottom: the window, gaps in place of the other rows, and among
 * these the row at `kept`, which stays in the document wherever the window is.
 */
export function bodyParts(count: number, shown: RowWindow, kept: number | null, height: number): BodyPart[] {
  const isApart = kept !== null && kept >= 0 && kept < count && (kept < shown.first || kept >= shown.end);
  const drawn = isApart ? [shown, { first: kept, end: kept + 1 }].sort((a, b) => a.first - b.first) : [shown];
  const parts: BodyPart[] = [];
  let before = 0;
  for (const part of [...drawn, { first: count, end: count }]) {
    if (part.first > before) parts.push({ first: before, end: part.first, gap: (part.first - before) * height });
    if (part.end > part.first) parts.push(part);
    before = part.end;
  }
  return parts;
}

/**
 * The window of a table's rows as its region scrolls; `body` is for the table's body. The row with
 * the focus stays in the document: whoever uses a keyboard goes on from there. `placeOf` finds a
 * row by its key.
 */
export function useRowWindow(count: number, placeOf: (key: string) => number) {
  const body = useRef<HTMLTableSectionElement>(null);
  const focused = useRef<string | null>(null);
  const [, drawAgain] = useState({});
  const [place, setPlace] = useState(0);
  const [height, setHeight] = useState(HEIGHT_GUESS);
  const shown = rowWindow(count, place);
  const isWhole = count <= WHOLE_MAX;
  const kept = isWhole || focused.current === null ? null : placeOf(focused.current);
  const parts = bodyParts(count, shown, kept, height);
  useLayoutEffect(() => {
    if (isWhole || !body.current) return;
    const gaps = parts.reduce((sum, { gap = 0 }) => sum + gap, 0);
    const rows = parts.reduce((sum, { first, end, gap }) => sum + (gap === undefined ? end - first : 0), 0);
    const measured = (body.current.offsetHeight - gaps) / rows;
    // Rows differ: what is left out is estimated, and a better estimate is worth a jump of its own only once.
    if (height === HEIGHT_GUESS && measured > 0) setHeight(measured);
  }, [isWhole, shown.first]);
  function onScroll(event: Event): void {
    if (isWhole) return;
    const next = Math.floor((event.currentTarget as HTMLElement).scrollTop / height / STEP) * STEP;
    if (next !== place) setPlace(next);
  }
  function onFocusIn(event: FocusEvent): void {
    focused.current = (event.target as HTMLElement).closest("tr")?.dataset["key"] ?? null;
  }
  function onFocusOut(event: FocusEvent): void {
    const to = event.relatedTarget as HTMLElement | null;
    // A window that is left for another one keeps its focus.
    if (to === null && document.activeElement === event.target) return;
    if (to !== null && body.current?.contains(to)) return;
    focused.current = null;
    if (kept !== null && (kept < shown.first || kept >= shown.end)) drawAgain({});
  }
  return { body, parts, isWhole, onScroll, onFocusIn, onFocusOut };
}
