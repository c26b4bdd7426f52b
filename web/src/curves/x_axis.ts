/** What a chart's curves are drawn over: batches, what these are in other units, or time. */

import type { Point } from "./smoothing";

export const X_UNITS = ["batches", "epochs", "records", "elapsed", "time"] as const;
export type XUnit = (typeof X_UNITS)[number];

export const X_TITLES: Record<XUnit, string> = {
  batches: "steps",
  epochs: "epochs",
  records: "records",
  elapsed: "time since the trial's start",
  time: "time",
};

/** What is known of a trial whose curve is drawn. */
export interface XScale {
  /** Records in a batch; 1 where the configuration names none. */
  batchSize?: number | undefined;
  /** Records in an epoch; 0 where the configuration does not say. */
  recordsPerEpoch?: number | undefined;
  startedMs?: number | null | undefined;
}

/** Whether a chart over this needs the times of its points. */
export function needsTimes(unit: XUnit): boolean {
  return unit === "elapsed" || unit === "time";
}

/** The unit of an address; batches for one that is not offered. */
export function readUnit(text: string | null, offered: readonly XUnit[]): XUnit {
  return offered.find((unit) => unit === text) ?? "batches";
}

/** Which units there are for trials of a configuration. */
export function offeredUnits(config: Record<string, unknown> | undefined): XUnit[] {
  const batch = (config?.["hyperparameters"] as Record<string, unknown> | undefined)?.["global_batch_size"];
  return X_UNITS.filter((unit) => {
    if (unit === "epochs") return recordsPerEpoch(config) > 0;
    return unit !== "records" || batch !== undefined;
  });
}

export function recordsPerEpoch(config: Record<string, unknown> | undefined): number {
  const count = config?.["records_per_epoch"];
  return typeof count === "number" ? count : 0;
}

/** The records in a batch of a trial with these hyperparameters. */
export function batchSize(hparams: Record<string, unknown>): number {
  const size = hparams["global_batch_size"];
  return typeof size === "number" && size > 0 ? size : 1;
}

// On either side of the only point of a chart over the time of day.
const POINT_SECONDS = 60;

/** The seconds of its axis that a chart shows around a single point in time; null for other charts. */
export function timeRange(places: ArrayLike<number>, unit: XUnit): { min: number; max: number } | null {
  const first = places[0];
  if (unit !== "time" || first === undefined || first !== places[places.length - 1]) return null;
  return { min: first - POINT_SECONDS, max: first + POINT_SECONDS };
}

/** The points of an answer over a unit: times in seconds; without those that have no place there. */
export function placePoints(raw: readonly (readonly unknown[])[], unit: XUnit, scale: XScale): Point[] {
  const first = raw.find(([, , time]) => typeof time === "number")?.[2] as number | undefined;
  // A process says that it began a moment later, when it may have reported already.
  const start = Math.min(scale.startedMs ?? Infinity, first ?? Infinity);
  const points: Point[] = [];
  for (const [steps, value, time] of raw) {
    const x = placeOf(Number(steps), time, unit, scale, start);
    if (x !== null) points.push([x, typeof value === "number" ? value : null]);
  }
  return points;
}

function placeOf(steps: number, time: unknown, unit: XUnit, { batchSize: size = 1, recordsPerEpoch: epoch = 0 }: XScale, start: number): number | null {
  if (unit === "records") return steps * size;
  if (unit === "epochs") return epoch > 0 ? (steps * size) / epoch : null;
  if (unit === "batches") return steps;
  if (typeof time !== "number") return null;
  return unit === "time" ? time / 1000 : (time - start) / 1000;
}
