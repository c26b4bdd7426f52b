/** The trials that have a value of the metric. */

import { flatten, type Trial } from "./all_trials";

export interface Measured {
  id: number;
  metric: number;
  hparams: Record<string, unknown>;
}

export function measuredTrials(trials: Trial[]): Measured[] {
  return trials.flatMap(({ id, best_metric: metric, hparams }) =>
    metric === null || !Number.isFinite(metric) ? [] : [{ id, metric, hparams: flatten(hparams) }],
  );
}
