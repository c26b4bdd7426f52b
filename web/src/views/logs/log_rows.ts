/** The rows of a log view: lines with folded tracebacks, or the lines of several ranks side by side. */

import { keyOf, type LogLine } from "./log_line";
import { findTracebacks, type TracebackLine } from "./tracebacks";

/** A line as shown. */
export interface ShownLine {
  key: string;
  line: LogLine;
  traceback: TracebackLine | undefined;
  /** The number of lines that are folded behind this first line of a traceback; 0 if unfolded. */
  folded: number;
  /** Whether this is the first line of a traceback with a body. */
  canFold: boolean;
}

/** A row: one line, or a line or nothing for each rank. */
export interface Row {
  key: string;
  cells: readonly (ShownLine | undefined)[];
}

/** Whether tracebacks are folded, except those of which the reader chose the opposite. */
export interface Folding {
  isFolded: boolean;
  /** Keys of the first lines of the other tracebacks. */
  others: ReadonlySet<string>;
}

/** The lines without the bodies of folded tracebacks. */
export function shownLines(lines: readonly LogLine[], folding: Folding): ShownLine[] {
  const tracebacks = findTracebacks(lines);
  const bodies = new Map<number, number>();
  for (const traceback of tracebacks) {
    if (traceback && isBody(traceback)) bodies.set(traceback.head, (bodies.get(traceback.head) ?? 0) + 1);
  }
  const isFolded = (head: number) => folding.isFolded !== folding.others.has(keyOf(lines[head]!));
  const shown: ShownLine[] = [];
  for (const [place, line] of lines.entries()) {
    const traceback = tracebacks[place];
    if (traceback && isBody(traceback) && isFolded(traceback.head)) continue;
    const body = traceback?.part === "head" ? (bodies.get(place) ?? 0) : 0;
    shown.push({ key: keyOf(line), line, traceback, folded: body > 0 && isFolded(place) ? body : 0, canFold: body > 0 });
  }
  return shown;
}

function isBody({ part }: TracebackLine): boolean {
  return part === "frame" || part === "source";
}

export function singleRows(shown: readonly ShownLine[]): Row[] {
  return shown.map((one) => ({ key: one.key, cells: [one] }));
}

const STEP_MS = 1_000;

/**
 * Rows with a column for each rank. A row has lines of the same second: a line never stands beside
 * or below a line of a later second of another rank. Lines of other ranks are left out.
 */
export function alignedRows(shown: readonly ShownLine[], ranks: readonly number[]): Row[] {
  const rows: (ShownLine | undefined)[][] = [];
  // The first free row of each column, and the first row of the present second.
  const free = ranks.map(() => 0);
  let [second, begin] = [-Infinity, 0];
  for (const one of shown) {
    const column = ranks.indexOf(one.line.rank);
    if (column < 0) continue;
    const own = Math.floor((one.line.time_ms ?? 0) / STEP_MS);
    if (own > second) [second, begin] = [own, rows.length];
    const row = Math.max(begin, free[column]!);
    rows[row] ??= ranks.map(() => undefined);
    rows[row]![column] = one;
    free[column] = row + 1;
  }
  return rows.map((cells) => ({ key: cells.find((cell) => cell !== undefined)!.key, cells }));
}

/** The ranks of a text such as `0, 3`, without repetitions; undefined if the text is no list of at most four ranks. */
export function parseRanks(text: string): number[] | undefined {
  const words = text.split(/[\s,]+/).filter(Boolean);
  if (words.some((word) => !/^\d{1,5}$/.test(word))) return undefined;
  const ranks = [...new Set(words.map(Number))];
  return ranks.length > COLUMNS_MAX ? undefined : ranks;
}

export const COLUMNS_MAX = 4;
