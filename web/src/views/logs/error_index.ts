/** The errors of a whole log: their number, and the next and the previous error of a line. */

import type { Schemas } from "../../api/client";
import { byteLength, sourceOf, type LogLine } from "./log_line";
import type { LoadPage, Place } from "./log_window";

// The server searches half a MiB for each page; so a look at the page counts up to 20 MiB of a log.
const PAGES_AT_ONCE = 40;
const PAGE_LINES = 500;
// The lines of a few errors.
const FEW_LINES = 10;
// 100 MiB of a log.
const SEARCHED_PAGES_MAX = 200;
/** The most errors whose places the page holds. */
export const ERRORS_MAX = 20_000;
const HEAD = /Traceback \(most recent call last\):/;
// The rank and the line break.
const OVERHEAD_BYTES_MAX = 16;

export interface ErrorCount {
  /** The offsets of the first lines of errors, in order. */
  offsets: readonly number[];
  /** Whether the whole log was searched. */
  isComplete: boolean;
  /** Whether the log may still grow. */
  isOpen: boolean;
}

/** Reads the errors from the beginning of the log; `load` returns the lines of level ERROR and above. */
export class ErrorIndex {
  private offsets: number[] = [];
  private lasts = new Map<string, LogLine>();
  private after: string | undefined;
  private isComplete = false;
  private isOpen = true;

  constructor(private readonly load: LoadPage) {}

  /** Search further pages, up to the present end of the log. */
  async read(signal: AbortSignal): Promise<ErrorCount> {
    for (let page = 0; page < PAGES_AT_ONCE && this.isOpen && this.offsets.length < ERRORS_MAX; page += 1) {
      const place = this.after === undefined ? { limit: PAGE_LINES } : { after: this.after, limit: PAGE_LINES };
      const read = await this.load(place, signal);
      if (signal.aborted) break;
      const isEnd = read.complete || read.next_cursor === this.after;
      this.add(read.items);
      this.after = read.next_cursor ?? this.after;
      this.isOpen = !read.complete;
      this.isComplete = isEnd;
      if (isEnd) break;
    }
    const isFull = this.offsets.length >= ERRORS_MAX;
    return { offsets: this.offsets, isComplete: this.isComplete && !isFull, isOpen: this.isOpen && !isFull };
  }

  private add(items: Schemas["Line"][]): void {
    // A page after the end of a growing log may repeat nothing, but a repeated request may.
    const fresh = items.filter(({ offset }) => offset > (this.lastOffset() ?? -1));
    this.offsets = [...this.offsets, ...errorStarts(fresh, this.lasts).map(({ offset }) => offset)];
  }

  private lastOffset(): number | undefined {
    const offsets = [...this.lasts.values()].map(({ offset }) => offset);
    return offsets.length ? Math.max(...offsets) : undefined;
  }
}

/** The lines that begin an error. `lasts` has the last line of each log before the lines, and is updated. */
export function errorStarts(lines: readonly LogLine[], lasts: Map<string, LogLine>): LogLine[] {
  return lines.filter((line) => {
    const before = lasts.get(sourceOf(line));
    lasts.set(sourceOf(line), line);
    return !isSameError(before, line);
  });
}

/**
 * Whether a line of the level ERROR belongs to the error of the line before it of the same rank: the
 * exception of a traceback, or the traceback of a logged exception.
 */
export function isSameError(before: LogLine | undefined, line: LogLine): boolean {
  if (before === undefined) return false;
  if (HEAD.test(before.text)) return !HEAD.test(line.text);
  const end = before.offset + byteLength(before.text) + OVERHEAD_BYTES_MAX;
  return HEAD.test(line.text) && line.offset <= end;
}

/** The place in `offsets` of the next or previous error of an offset; -1 if there is none. */
export function errorBeside(offsets: readonly number[], offset: number, isNext: boolean): number {
  return isNext ? offsets.findIndex((one) => one > offset) : offsets.findLastIndex((one) => one < offset);
}

/** The number of errors at or before an offset. */
export function errorsUntil(offsets: readonly number[], offset: number): number {
  const after = offsets.findIndex((one) => one > offset);
  return after < 0 ? offsets.length : after;
}

/**
 * Search the log for the next or previous error of an offset, page after page. Returns the offset of
 * the error, or null if there is none; undefined if the limit of pages is reached.
 */
export async function findError(load: LoadPage, from: number, isNext: boolean, signal: AbortSignal): Promise<number | null | undefined> {
  // The page begins with the line itself: the next line of the log may belong to the same error.
  let place: Omit<Place, "limit"> = isNext ? { at: Math.max(0, from) } : { before: Math.max(0, from) };
  const lasts = new Map<string, LogLine>();
  for (let page = 0; page < SEARCHED_PAGES_MAX && !signal.aborted; page += 1) {
    const { items, next_cursor: next, previous, complete } = await load({ ...place, limit: FEW_LINES }, signal);
    const starts = errorStarts(items, lasts).filter(({ offset }) => (isNext ? offset > from : true));
    const found = isNext ? starts[0] : starts.at(-1);
    if (found) return found.offset;
    if (isNext ? complete || next === null || next === place.after : previous === null) return null;
    place = isNext ? { after: next! } : { before: previous! };
  }
  return undefined;
}
