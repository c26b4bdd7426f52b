/** The lines of a log that were read so far, and the reading of what came since. */

import type { Schemas } from "../../api/client";

export type Line = Schemas["Line"];
type Page = Schemas["Lines"];

export const LINES_MAX = 20_000;
const PAGES_AT_ONCE = 10;

export interface LogState {
  lines: readonly Line[];
  /** Whether the log can still grow or has more behind what was read. */
  isOpen: boolean;
  isFull: boolean;
}

/** Reads on from where it stopped; `load` asks for a page behind a cursor. */
export class LogReader {
  private lines: Line[] = [];
  private cursor: string | undefined;
  private isOpen = true;

  constructor(private readonly load: (after: string | undefined, signal: AbortSignal) => Promise<Page>) {}

  async readOn(signal: AbortSignal): Promise<LogState> {
    for (let page = 0; page < PAGES_AT_ONCE && this.isOpen && this.lines.length < LINES_MAX; page += 1) {
      const { items, next_cursor: next, complete } = await this.load(this.cursor, signal);
      if (signal.aborted) break;
      const isSame = next === (this.cursor ?? null);
      if (items.length) this.lines = joinLines(this.lines, items);
      this.cursor = next ?? undefined;
      this.isOpen = !complete;
      // Nothing behind this yet: it is asked for again later.
      if (isSame) break;
    }
    return { lines: this.lines, isOpen: this.isOpen, isFull: this.lines.length >= LINES_MAX };
  }
}

/** The lines with those that follow them: what goes on with an unfinished line takes its place. */
function joinLines(lines: readonly Line[], following: readonly Line[]): Line[] {
  const joined = [...lines];
  for (const line of following) {
    const last = joined.at(-1);
    const continues = last?.unfinished && last.offset + byteLength(last.text) === line.offset;
    if (continues) joined[joined.length - 1] = { ...line, time_ms: last.time_ms, rank: last.rank, level: last.level ?? line.level };
    else joined.push(line);
  }
  return joined;
}

/** What a terminal shows of a line in the end: the text behind its last carriage return. */
export function shownText(text: string): string {
  return text.includes("\r") ? (text.split("\r").findLast((part) => part !== "") ?? "") : text;
}

function byteLength(text: string): number {
  return new TextEncoder().encode(text).length;
}
