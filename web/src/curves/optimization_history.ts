/** The course of a search: the objective of each trial, and the best so far. */

import type { Point } from "./smoothing";

export interface HistoryTrial {
  id: number;
  /** The number of the trial within its search, from 0. */
  number: number;
  /** The best value of the search's metric; null before the first. */
  metric: number | null;
  batches: number;
  createdMs: number;
  /** Null while the trial has not ended. */
  endedMs: number | null;
  /** In dollars. */
  cost: number;
}

export const HISTORY_UNITS = ["trials", "time", "batches", "cost"] as const;
export type HistoryUnit = (typeof HISTORY_UNITS)[number];

export const HISTORY_TITLES: Record<HistoryUnit, string> = {
  trials: "trials",
  time: "time since the search's start",
  batches: "batches trained by all trials until then",
  cost: "dollars spent by all trials until then",
};

export interface SearchCourse {
  /** A point for each trial with an objective. */
  points: Point[];
  /** The best objective up to each point. */
  best: Point[];
  /** The trial of each point, by the point's place. */
  trials: Map<number, HistoryTrial>;
  /** Trials without an objective, which have no point. */
  missing: number;
}

/**
 * The course of a search over a unit. Over trials, a trial's place is its number from 1. Over time,
 * batches and dollars, a trial's place is its end, or `nowMs` before its end. Batches and dollars are
 * sums over the trials that had ended by then, the trial itself included.
 */
export function searchCourse(trials: readonly HistoryTrial[], unit: HistoryUnit, smallerIsBetter: boolean, nowMs: number): SearchCourse {
  const endOf = ({ endedMs }: HistoryTrial) => endedMs ?? nowMs;
  const sorted = [...trials].sort((a, b) => (unit === "trials" ? 0 : endOf(a) - endOf(b)) || a.number - b.number);
  const startMs = Math.min(...trials.map(({ createdMs }) => createdMs));
  const course: SearchCourse = { points: [], best: [], trials: new Map(), missing: 0 };
  let [sum, last, best] = [0, -Infinity, null as number | null];
  for (const trial of sorted) {
    if (unit === "batches") sum += trial.batches;
    if (unit === "cost") sum += trial.cost;
    if (trial.metric === null || !Number.isFinite(trial.metric)) {
      course.missing += 1;
      continue;
    }
    const place = unit === "trials" ? trial.number + 1 : unit === "time" ? (endOf(trial) - startMs) / 1000 : sum;
    // A chart has one value at a place; the shift is too small to be seen.
    last = place > last ? place : last + Math.max(Math.abs(last), 1) * 1e-9;
    if (best === null || (smallerIsBetter ? trial.metric < best : trial.metric > best)) best = trial.metric;
    course.points.push([last, trial.metric]);
    course.best.push([last, best]);
    course.trials.set(last, trial);
  }
  return course;
}

/** Whether each of several trials has a single value, so that curves would be points. */
export function areSingleValues(series: readonly { total: number }[]): boolean {
  const measured = series.filter(({ total }) => total > 0);
  return measured.length > 1 && measured.every(({ total }) => total === 1);
}
