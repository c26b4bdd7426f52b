/** The phases of a replacement: the time from the loss of a run's slots to the first step of a later run. */

import { durationText } from "./format";

export interface Phase {
  phase: string;
  duration_ms: number;
}

/** A segment of the bar of a replacement, with its place in percent of the longest bar. */
export interface Segment extends Phase {
  from: number;
  width: number;
}

const NAMES: Record<string, string> = { first_step: "first step" };
const CAUSES: Record<string, string> = {
  notice: "after a notice",
  loss: "after a loss",
  preemption: "after a preemption",
};

/** The name of a phase; phases of newer clusters keep their name. */
export function phaseName(phase: string): string {
  return NAMES[phase] ?? phase;
}

export function causeText(cause: string): string {
  return CAUSES[cause] ?? cause;
}

/** A duration with a decimal below ten seconds, where phases differ by less than a second. */
export function phaseText(ms: number): string {
  return ms < 10_000 ? `${(ms / 1000).toFixed(1)} s` : durationText(ms);
}

/** The segments of a bar in order, without those of no length; the whole width stands for `longestMs`. */
export function segmentsOf(phases: Phase[], longestMs: number): Segment[] {
  const scale = longestMs > 0 ? 100 / longestMs : 0;
  let passed = 0;
  return phases
    .map((one) => {
      const from = passed * scale;
      passed += one.duration_ms;
      return { ...one, from, width: one.duration_ms * scale };
    })
    .filter(({ width }) => width > 0);
}

/** The phases as a text: `checkpoint 3.0 s, queue 40 s`. */
export function phasesText(phases: Phase[]): string {
  return phases.map(({ phase, duration_ms: ms }) => `${phaseName(phase)} ${phaseText(ms)}`).join(", ");
}
