/** The length at which all charts of hyperparameters compare trials, and the best trial there. */

import { countText, numberText, shortText } from "../../parts/format";
import { href, useSetQuery } from "../../shell/router";
import { lengthText, type Comparison } from "./length_results";

type Results = Comparison["results"];

export function LengthChoice({ results }: { results: Results }) {
  const { at, unit, lengths } = results;
  const setQuery = useSetQuery();
  const isOffered = lengths.some(({ length }) => length === at);
  return (
    <div class="tools">
      <label>Compare trials at{" "}
        <select value={at ?? ""} onChange={(event) => setQuery({ at: event.currentTarget.value })}>
          {at === null && <option value="">no length</option>}
          {at !== null && !isOffered && <option value={at}>{lengthText(at, unit)}</option>}
          {lengths.map(({ length, trials }) => (
            <option key={length} value={length}>{lengthText(length, unit)} ({countText(trials, "trial")})</option>
          ))}
        </select>
      </label>
      <Best results={results} />
    </div>
  );
}

function Best({ results }: { results: Results }) {
  const { best, metric, at, unit, smaller_is_better: smallerIsBetter } = results;
  if (!best || at === null) return null;
  return (
    <span>
      Best {shortText(metric, 60)} at {lengthText(at, unit)}: {numberText(best.metric)}, <a href={href("trials", best.trial_id)}>trial {best.trial_id}</a>{" "}
      <span class="quiet">({smallerIsBetter ? "smaller" : "larger"} is better)</span>
    </span>
  );
}
