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

// Colours and movements of the cursor, which a terminal would carry out.
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;

/** Text that differs for all lines of a view. */
export function keyOf({ trial_id: trial, offset }: LogLine): string {
  return trial === undefined ? String(offset) : `${trial}-${offset}`;
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
