/** Which blocks of a log's lines are shown, and in what order they come into the document. */

/** Lines of a block: as many as are drawn within a few milliseconds. */
export const BLOCK = 100;
const SHOWN_MAX = 20;

/** The blocks from `first` on, without `end`. */
export interface Blocks {
  first: number;
  end: number;
}

/** The last blocks of so many lines, or those around the line at `place` unless that is negative. */
export function shownBlocks(lines: number, place: number): Blocks {
  const count = Math.ceil(lines / BLOCK);
  const end = place < 0 ? count : Math.min(count, Math.floor(place / BLOCK) + SHOWN_MAX / 2);
  return { first: Math.max(0, end - SHOWN_MAX), end };
}

/** The blocks around the anchor that can be seen: the anchor, and drawn ones without one missing between. */
export function drawnAround(anchor: number, all: Blocks, drawn: ReadonlySet<number>): Blocks {
  let [first, end] = [anchor, anchor + 1];
  while (first > all.first && drawn.has(first - 1)) first -= 1;
  while (end < all.end && drawn.has(end)) end += 1;
  return { first, end };
}

/** The blocks that are not drawn yet, the nearest to the anchor first. */
export function blocksToDraw(anchor: number, all: Blocks, drawn: ReadonlySet<number>): number[] {
  const blocks = Array.from({ length: all.end - all.first }, (_, n) => all.first + n);
  return blocks
    .filter((block) => block !== anchor && !drawn.has(block))
    .sort((a, b) => Math.abs(a - anchor) - Math.abs(b - anchor));
}
