/** The first look at an ended search: how the search improved, and which hyperparameters mattered. */

import type { ExperimentWhole } from "../../api/answers";
import { ChartSourceContext } from "../../curves/chart_source";
import { Shown } from "../../parts/status";
import { ImportancePart } from "./importance_part";
import { useImportance } from "./length_results";
import { OptimizationPart } from "./optimization_part";

export function OverviewPart({ experiment }: { experiment: ExperimentWhole }) {
  const importance = useImportance(experiment);
  return (
    <div class="split overview">
      <section aria-label="optimization history">
        <h2>Optimization history</h2>
        <ChartSourceContext.Provider value={{ kind: "history", experiments: [experiment.id!] }}>
          <OptimizationPart experiment={experiment} isBrief />
        </ChartSourceContext.Provider>
      </section>
      <div><Shown live={importance}>{(found) => <ImportancePart importance={found} />}</Shown></div>
    </div>
  );
}
