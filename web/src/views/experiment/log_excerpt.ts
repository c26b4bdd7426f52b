/** The part of a log that shows why a program failed. */

const LINES_MAX = 20;
// detcloud/shared/process_exits.py has the same words.
const LOG_QUOTE = "; the end of its log";
const TRACEBACK = "Traceback (most recent call last):";

/** The log from the start of the last traceback on, or the last lines of a log without a traceback. */
export function logExcerpt(log: string): string {
  const lines = log.trimEnd().split("\n");
  const start = lines.findLastIndex((line) => line.includes(TRACEBACK));
  return (start < 0 ? lines.slice(-LINES_MAX) : lines.slice(start)).join("\n");
}

/** The reason of a failure without the end of the log, which the message of a failed process quotes. */
export function reasonOf(message: string): string {
  return message.split(LOG_QUOTE, 1)[0]!.split("\n", 1)[0]!;
}

/** The reason of a failure with the last line of the log that the message quotes, which is often an exception. */
export function failureText(message: string): string {
  const last = message.includes(LOG_QUOTE) && message.trimEnd().split("\n").slice(1).at(-1);
  return last ? `${reasonOf(message)}: ${last.trim()}` : message;
}
