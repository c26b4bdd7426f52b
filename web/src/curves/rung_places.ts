/** Where the trials of a bracket lie in a picture of its rungs: by their metric, the best at 1. */

import { quantile } from "./quantile_band";

/** A scale of metrics: what lies beyond its worse end is put there. */
export interface MetricScale {
  worst: number;
  best: number;
  /** Whether some metric is worse than the end of the scale. */
  isCut: boolean;
  /** The place of a metric, 0 the worst that is shown and 1 the best. */
  place: (metric: number) => number;
}

/**
 * The scale of some metrics, null without any. Its worse end is no farther than 1.5 times the
 * distance of the quartiles beyond the worse of them (Tukey 1977): one trial that diverged does not
 * push all others into a corner.
 */
export function metricScale(metrics: readonly number[], smallerIsBetter: boolean): MetricScale | null {
  const sign = smallerIsBetter ? 1 : -1;
  const losses = metrics.filter(Number.isFinite).map((metric) => sign * metric).sort((a, b) => a - b);
  if (losses.length === 0) return null;
  const [low, high] = [quantile(losses, 0.25), quantile(losses, 0.75)];
  const fence = high + 1.5 * (high - low);
  const best = losses[0]!;
  const worst = losses.filter((loss) => loss <= fence).at(-1)!;
  const place = (metric: number): number => {
    if (worst === best) return sign * metric > worst ? 0 : 1;
    return Math.min(1, Math.max(0, (worst - sign * metric) / (worst - best)));
  };
  return { worst: sign * worst, best: sign * best, isCut: losses.at(-1)! > worst, place };
}

/** The shares of a bar that outcomes take of a rung: where each begins and how long it is, 0 to 1. */
export function barShares(counts: readonly number[]): { start: number; size: number }[] {
  const total = counts.reduce((sum, count) => sum + count, 0);
  let start = 0;
  return counts.map((count) => {
    const size = total ? count / total : 0;
    const share = { start, size };
    start += size;
    return share;
  });
}
