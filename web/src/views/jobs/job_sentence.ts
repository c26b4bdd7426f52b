/** The sentence about a job: where it runs, or why and for how long it waits. `detcloud job list` prints the same sentence. */

import type { Job } from "../../api/answers";
import { countText, durationText } from "../../parts/format";

type Fields = Pick<Job, "condition" | "waits" | "waits_since_ms" | "expected_start_ms" | "allocated_slots" | "requested_slots">;

export function jobSentence(job: Fields, nowMs: number): string {
  const { condition, waits, waits_since_ms: since, allocated_slots: held, requested_slots: needed } = job;
  if (condition === "running") {
    const runs = held === 0 ? "Runs without slots." : `Runs on ${held < needed ? `${held} of ` : ""}${countText(needed, "slot")}.`;
    return waits ? `${runs} The next trial waits: ${waits}.${startText(job, nowMs)}` : runs;
  }
  if (condition !== "queued" && !waits) return "";
  const length = since === null ? "" : ` for ${durationText(nowMs - since)}`;
  return `Waits${length}: ${waits || "the scheduler has not looked at this job yet"}.${startText(job, nowMs)}`;
}

/** The time after which the sentence is another one: seconds are shown only of short times. */
export function sentencePeriodMs({ waits_since_ms: since, expected_start_ms: start }: Fields, nowMs: number): number {
  const times = [since, start].filter((ms) => ms !== null).map((ms) => Math.abs(nowMs - ms));
  return Math.min(...times, Infinity) < 3_600_000 ? 1_000 : 60_000;
}

function startText({ expected_start_ms: start }: Fields, nowMs: number): string {
  if (start === null) return "";
  return start - nowMs < 500 ? " Start expected now." : ` Start expected in ${durationText(start - nowMs)}.`;
}
