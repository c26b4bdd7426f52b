/** The replacements of an experiment's trials: the sums by cause and phase, and the latest as bars. */

import type { ExperimentWhole } from "../../api/answers";
import { get } from "../../api/client";
import { markOf } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { ReplacementSums } from "../../parts/replacements";

/** Show nothing without replacements, and while the cluster does not answer: the trials have bars, too. */
export function ExperimentReplacements({ experiment }: { experiment: ExperimentWhole }) {
  const id = experiment.id!;
  const { value: sums } = useLive(
    `replacements of experiment ${id}`,
    (signal) => get("/api/v1/experiments/{experiment_id}/replacements", { path: { experiment_id: id }, signal }),
    () => "still",
    // A change of the trials may be the end of a replacement.
    `${markOf(experiment)} ${JSON.stringify(experiment.trials)} ${JSON.stringify(experiment.notices)}`,
  );
  if (!sums || sums.latest.length === 0) return null;
  return (
    <details>
      <summary>Replacements of its trials</summary>
      <ReplacementSums causes={sums.causes} latest={sums.latest} isCut={sums.is_cut} />
    </details>
  );
}
