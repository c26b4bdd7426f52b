/** The logs of several trials as a text, with the lines in the order of time. */

import type { LogLine } from "./log_line";
import { readAllLines, type LoadPeriod } from "./period_reader";

/** The pieces of the text, with the lines from `begin` to `end`. */
export async function* mergedText(load: LoadPeriod, begin: number, end: number, signal: AbortSignal): AsyncGenerator<string> {
  for await (const lines of readAllLines(load, begin, end, signal)) yield lines.map(lineText).join("");
}

/** A line as `detcloud logs --timestamps` prints it. */
export function lineText({ time_ms: time, rank, level, trial_id: trial, text }: LogLine): string {
  return `[${new Date(time!).toISOString()}] [rank=${rank}]${level ? ` ${level}` : ""} [trial ${trial}] ${text}\n`;
}
