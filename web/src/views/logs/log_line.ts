/** A line of a log, and the text that the page shows of the line. */

export interface LogLine {
  /** The trial of the log; undefined in a view of one trial alone. */
  trial_id?: number;
  offset: number;
  time_ms: number | null;
  rank: number;
  level: string | null;
  text: string;
  /** Whether the next line of the log continues this line. */
  unfinished?: boolean;
}

/** The place of a line in the logs of several trials. */
export type LinePlace = Pick<LogLine, "trial_id" | "time_ms" | "offset">;

// Colours and movements of the cursor, which a terminal would carry out.
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;

/** Text that differs for all lines of a view. */
export function keyOf({ trial_id: trial, offset }: Pick<LogLine, "trial_id" | "offset">): string {
  return trial === undefined ? String(offset) : `${trial}-${offset}`;
}

/** The text that an address has for a line of several logs, such as `1764493512345-7-812`. */
export function placeText({ time_ms: time, trial_id: trial, offset }: LinePlace): string {
  return `${time}-${trial}-${offset}`;
}

/** The line that such a text names; null for other texts. */
export function linePlace(text: string | null): { time_ms: number; trial_id: number; offset: number } | null {
  const found = /^(\d{1,15})-([1-9]\d{0,11})-(\d{1,15})$/.exec(text ?? "");
  return found && { time_ms: Number(found[1]), trial_id: Number(found[2]), offset: Number(found[3]) };
}

/** Text that differs for the logs of all trials and ranks. */
export function sourceOf({ trial_id: trial, rank }: LogLine): string {
  return `${trial}/${rank}`;
}

/** The text that a terminal shows of a line in the end, without colours: the text after the last carriage return. */
export function shownText(text: string): string {
  const last = text.includes("\r") ? (text.split("\r").findLast((part) => part !== "") ?? "") : text;
  return last.includes("\x1b") ? last.replace(ESCAPES, "") : last;
}

/** The lines with the lines that follow: a continuation of an unfinished line replaces that line. */
export function joinLines(lines: readonly LogLine[], following: readonly LogLine[]): LogLine[] {
  const joined = [...lines];
  for (const line of following) {
    const last = joined.at(-1);
    const continues = last?.unfinished && last.offset + byteLength(last.text) === line.offset;
    if (continues) joined[joined.length - 1] = { ...line, time_ms: last.time_ms, rank: last.rank, level: last.level ?? line.level };
    else joined.push(line);
  }
  return joined;
}

export function byteLength(text: string): number {
  return new TextEncoder().encode(text).length;
}

/** The order of the lines of several logs: by time, then by trial, then by the place in the trial's log. */
export function byTime(a: LinePlace, b: LinePlace): number {
  return (a.time_ms ?? 0) - (b.time_ms ?? 0) || (a.trial_id ?? 0) - (b.trial_id ?? 0) || a.offset - b.offset;
}
