/** Reads the lines of several logs period by period. The periods adapt to the number of lines. */

import type { Schemas } from "../../api/client";
import { byTime, type LogLine } from "./log_line";

type Page = Schemas["Page_TrialLine_"];
export type Period = { since_ms: number; until_ms?: number; cursor?: string; limit: number };
export type LoadPeriod = (period: Period, signal: AbortSignal) => Promise<Page>;

const PAGE_LINES = 500;
// A period of a request's many pages is read to its end before its lines are shown.
const PAGES_MAX = 60;
const FIRST_MS = 60_000;
const LONGEST_MS = 7 * 24 * 3_600_000;
export const SHORTEST_MS = 1_000;
// A period with so few lines is followed by a longer one.
const FEW_LINES = 200;
// A period with more lines is read again as shorter periods, because its trials come one after another.
const MANY_LINES = 2_000;

export class PeriodReader {
  /** The length of the next period in milliseconds, a whole number as in all requests. */
  length = FIRST_MS;
  /** Whether the last period had more lines than it may have, and lost some of them. */
  isCut = false;

  /** `linesMax` limits the lines of the shortest period; a longer period is divided instead. */
  constructor(private readonly load: LoadPeriod, private readonly linesMax: number) {}

  /**
   * The lines of a period of the present length; undefined if the period has more lines than the page
   * can read. The next period is shorter then, and longer after a period with few lines.
   */
  async read(period: Omit<Period, "limit" | "cursor">, signal: AbortSignal): Promise<LogLine[] | undefined> {
    const lines: LogLine[] = [];
    let cursor: string | undefined;
    const isShortest = this.length <= SHORTEST_MS;
    const most = isShortest ? this.linesMax : MANY_LINES;
    const pages = isShortest && most === Infinity ? Infinity : PAGES_MAX;
    this.isCut = false;
    for (let page = 0; page < pages && lines.length <= most; page += 1) {
      const { items, next_cursor: next } = await this.load({
        ...period, since_ms: Math.max(0, period.since_ms), ...(cursor && { cursor }), limit: PAGE_LINES,
      }, signal);
      if (signal.aborted) return lines;
      lines.push(...items);
      if (!next) {
        if (lines.length < FEW_LINES) this.length = Math.min(LONGEST_MS, 4 * this.length);
        return lines;
      }
      cursor = next;
    }
    this.length = Math.max(SHORTEST_MS, Math.floor(this.length / 4));
    if (!isShortest) return undefined;
    this.isCut = true;
    return lines.slice(0, this.linesMax);
  }
}

/** All lines from `begin` to `end`, in epoch milliseconds, in the order of time. */
export async function* readAllLines(load: LoadPeriod, begin: number, end: number, signal: AbortSignal): AsyncGenerator<LogLine[]> {
  const reader = new PeriodReader(load, Infinity);
  for (let since = Math.floor(begin); since <= end;) {
    // Both ends belong to a period.
    const until = Math.min(end, since + reader.length - 1);
    const lines = await reader.read({ since_ms: since, until_ms: until }, signal);
    signal.throwIfAborted();
    if (lines === undefined) continue;
    yield lines.sort(byTime);
    since = until + 1;
  }
}
