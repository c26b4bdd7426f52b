/** The next and the previous error in the logs of several trials, in the order of time. */

import { errorStarts } from "./error_index";
import { byTime, type LinePlace, type LogLine } from "./log_line";
import { LINES_MAX } from "./log_window";
import { PeriodReader, type LoadPeriod } from "./period_reader";

/** The found line; null if no error is left on this side; the time up to which a long search came. */
export type FoundError = { line: LogLine | null } | { reachedMs: number };

// A request reads up to half a MiB of logs.
const REQUESTS_MAX = 300;
// The lines of a traceback may be some milliseconds apart, with lines of other trials between them.
const TRACEBACK_MS = 1_000;

/**
 * Search for the next or previous error of a place, up to the end or beginning of the logs. `load`
 * returns the lines of level ERROR and above.
 */
export async function findMergedError(
  load: LoadPeriod, { begin, end }: { begin: number; end: number }, place: LinePlace, isNext: boolean, signal: AbortSignal,
): Promise<FoundError> {
  let requests = 0;
  const reader = new PeriodReader((period, given) => {
    requests += 1;
    return load(period, given);
  }, LINES_MAX);
  let read: LogLine[] = [];
  // The line after the place may belong to the same error.
  let edge = Math.floor(isNext ? place.time_ms! - TRACEBACK_MS : place.time_ms!);
  while (isNext ? edge <= end : edge >= begin) {
    if (requests >= REQUESTS_MAX) return { reachedMs: edge };
    const [since, until] = isNext ? [edge, Math.min(end, edge + reader.length - 1)] : [Math.max(begin, edge - reader.length + 1), edge];
    const lines = await reader.read({ since_ms: since, until_ms: until }, signal);
    signal.throwIfAborted();
    if (lines === undefined) continue;
    read = [...read, ...lines].sort(byTime);
    const starts = errorStarts(read, new Map());
    // The first lines of a period may end an error that begins before the period.
    const sure = since <= begin ? -Infinity : since + TRACEBACK_MS;
    const line = isNext
      ? starts.find((one) => byTime(one, place) > 0)
      : starts.findLast((one) => byTime(one, place) < 0 && one.time_ms! >= sure);
    if (line) return { line };
    edge = isNext ? until + 1 : since - 1;
  }
  return { line: null };
}
