/** The tracebacks among the lines of a log, which the view colours and folds. */

import { shownText, sourceOf, type LogLine } from "./log_line";

/** The parts of a traceback. `raise` is the last line, with the exception. */
export type Part = "head" | "frame" | "source" | "raise";

export interface TracebackLine {
  /** The place of the traceback's first line among the lines. */
  head: number;
  part: Part;
}

const HEAD = /Traceback \(most recent call last\):/;
const FRAME = /^[\s|]*File ".*", line \d+/;
// A body is indented; the lines of an exception group begin with a bar or a plus.
const BODY = /^(?:\s|\||\+|$)/;

/**
 * For each line, the part of a traceback; undefined for other lines. Lines of other ranks and trials
 * may stand between the lines of a traceback. A last traceback may lack its end.
 */
export function findTracebacks(lines: readonly LogLine[]): (TracebackLine | undefined)[] {
  const open = new Map<string, { head: number; prefix: string }>();
  return lines.map((line, place) => {
    const source = sourceOf(line);
    const text = shownText(line.text);
    const head = HEAD.exec(text);
    if (head) {
      open.set(source, { head: place, prefix: text.slice(0, head.index).replace(/\s*(?:\+ Exception Group )?$/, "") });
      return { head: place, part: "head" };
    }
    const traceback = open.get(source);
    if (!traceback) return undefined;
    const { prefix } = traceback;
    const body = prefix && text.startsWith(prefix) ? text.slice(prefix.length).replace(/^ (?=\S)/, "") : text;
    if (BODY.test(body)) return { head: traceback.head, part: FRAME.test(body) ? "frame" : "source" };
    open.delete(source);
    return { head: traceback.head, part: "raise" };
  });
}
