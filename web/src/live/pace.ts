/** How often a view asks again: soon while something moves, seldom while nothing does. */

export const FAST_MS = 2_000;
export const SLOW_MS = 30_000;
const GROWTH = 1.6;

/**
 * How a value can change: "moving" by itself and soon, "resting" when somebody does something, or
 * "still" not unless something else that is shown does.
 */
export type Motion = "moving" | "resting" | "still";

export interface Asked {
  /** The wait before the request that was just answered. */
  lastMs: number;
  /** Whether its answer differed from the one before. */
  changed: boolean;
  motion: Motion;
  /** Requests in a row that failed, this one included. */
  failures: number;
}

/** The wait before the next request, in milliseconds; null where there is to be none. */
export function nextWaitMs({ lastMs, changed, motion, failures }: Asked): number | null {
  if (failures > 0) return Math.min(SLOW_MS, FAST_MS * 2 ** (failures - 1));
  if (motion === "still") return null;
  if (motion === "resting") return SLOW_MS;
  return changed ? FAST_MS : Math.min(SLOW_MS, Math.max(FAST_MS, lastMs * GROWTH));
}
