/** The results of an experiment: learning curves, the optimization history, or the Pareto front. */

import { useState } from "preact/hooks";
import type { ExperimentWhole } from "../../api/answers";
import { setQuery, useRoute } from "../../shell/router";
import { CurvesPart } from "./curves_part";
import { OptimizationPart } from "./optimization_part";
import { ParetoPart } from "./pareto_part";

const PICTURES = [
  ["curves", "Learning curves"],
  ["history", "Optimization history"],
  ["pareto", "Pareto front"],
] as const;

export function ResultsPart({ experiment }: { experiment: ExperimentWhole }) {
  const { query } = useRoute();
  const [areSingle, setSingle] = useState(false);
  // Where each trial has one value, curves would be points. A chosen metric is always drawn as curves.
  const usual = areSingle && !query.get("metric") ? "history" : "curves";
  const picture = PICTURES.find(([name]) => name === query.get("picture"))?.[0] ?? usual;
  return (
    <>
      <div class="states" role="group" aria-label="picture">
        {PICTURES.map(([name, title]) => (
          <button key={name} aria-pressed={picture === name} onClick={() => setQuery({ picture: name, over: null })}>{title}</button>
        ))}
      </div>
      {picture === "curves" && <CurvesPart experiment={experiment} onSingleValues={setSingle} />}
      {picture === "history" && <OptimizationPart experiment={experiment} />}
      {picture === "pareto" && <ParetoPart experiment={experiment} />}
    </>
  );
}
