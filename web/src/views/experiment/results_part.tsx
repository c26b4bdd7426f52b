/** The results of an experiment: an overview, learning curves, the optimization history, or the Pareto front. */

import { useState } from "preact/hooks";
import type { ExperimentWhole } from "../../api/answers";
import { ChartSourceContext } from "../../curves/chart_source";
import { setQuery, useRoute } from "../../shell/router";
import { CurvesPart } from "./curves_part";
import { OptimizationPart } from "./optimization_part";
import { OverviewPart } from "./overview_part";
import { ParetoPart } from "./pareto_part";

const PICTURES = [
  ["overview", "Overview"],
  ["curves", "Learning curves"],
  ["history", "Optimization history"],
  ["pareto", "Pareto front"],
] as const;

// What a reader has set for curves is shown in curves.
const CURVE_SETTINGS = ["metric", "group", "trials", "x", "smooth", "best", "quantiles", "colour"];

export function ResultsPart({ experiment }: { experiment: ExperimentWhole }) {
  const { query } = useRoute();
  const [areSingle, setSingle] = useState(false);
  // Where each trial has one value, curves would be points. Trials that have not ended may have more later.
  const hasEnded = experiment.trials.completed > 1;
  const first = experiment.ended_ms !== null ? "overview" : areSingle ? "history" : "curves";
  const usual = hasEnded && !CURVE_SETTINGS.some((name) => query.has(name)) ? first : "curves";
  const picture = PICTURES.find(([name]) => name === query.get("picture"))?.[0] ?? usual;
  return (
    <>
      <div class="states" role="group" aria-label="picture">
        {PICTURES.map(([name, title]) => (
          <button key={name} aria-pressed={picture === name} onClick={() => setQuery({ picture: name, over: null })}>{title}</button>
        ))}
      </div>
      {picture === "overview" && <OverviewPart experiment={experiment} />}
      {picture !== "overview" && <ChartSourceContext.Provider value={{ kind: picture, experiments: [experiment.id!] }}>
        {picture === "curves" && <CurvesPart experiment={experiment} onSingleValues={setSingle} />}
        {picture === "history" && <OptimizationPart experiment={experiment} />}
        {picture === "pareto" && <ParetoPart experiment={experiment} />}
      </ChartSourceContext.Provider>}
    </>
  );
}
