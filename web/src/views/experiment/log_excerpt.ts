/** The part of a log that shows why a program failed. */

const LINES_MAX = 20;
const TRACEBACK = "Traceback (most recent call last):";

/** The log from the start of the last traceback on, or the last lines of a log without a traceback. */
export function logExcerpt(log: string): string {
  const lines = log.trimEnd().split("\n");
  const start = lines.findLastIndex((line) => line.includes(TRACEBACK));
  return (start < 0 ? lines.slice(-LINES_MAX) : lines.slice(start)).join("\n");
}
