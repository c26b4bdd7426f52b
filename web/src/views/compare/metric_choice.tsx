/** The choice of the metrics that are drawn: one, or several beside each other. */

import { get } from "../../api/client";
import { useLive, type Live } from "../../live/use_live";
import { Failure } from "../../parts/status";
import { setQuery } from "../../shell/router";
import { METRICS_MAX, metricText, metricTitle, metricsQuery, readMetric, type Compared, type Metric } from "./load_compared";

// Of more trials, the metrics that one may choose from are those of the first.
const NAMED_MAX = 10;

/** The metrics that the trials have reported. */
export function useMetricNames(compared: Compared[]): Live<string[]> {
  const ids = compared.slice(0, NAMED_MAX).map(({ trial }) => trial.id);
  return useLive(`metrics of ${ids}`, async (signal) => {
    const answers = await Promise.all(ids.map((id) => get("/api/v1/trials/{trial_id}/metrics/names", { path: { trial_id: id }, signal })));
    return [...new Set(answers.flatMap(({ items }) => items.map(metricText)))].sort();
  }, () => "still");
}

export function MetricChoice({ names, chosen }: { names: Live<string[]>; chosen: Metric[] }) {
  const texts = chosen.map(metricText);
  const choices = [...new Set([...(names.value ?? []), ...texts])];
  const choose = (next: readonly string[]) => setQuery(metricsQuery(next.flatMap((text) => readMetric(text) ?? [])));
  return (
    <>
      {names.error && <Failure error={names.error} retry={() => void names.refresh()} />}
      <label>Metric{" "}
        <select value={texts.length > 1 ? "several" : texts[0] ?? ""} onChange={(event) => choose(event.currentTarget.value ? [event.currentTarget.value] : [])}>
          <option value="">the metric of each search</option>
          {texts.length > 1 && <option value="several">{texts.length} of them</option>}
          {choices.map((text) => <option key={text} value={text}>{metricTitle(readMetric(text)!)}</option>)}
        </select>
      </label>
      {choices.length > 1 && (
        <details class="several">
          <summary>Select several metrics</summary>
          <fieldset>
            <legend class="quiet">A chart each, {METRICS_MAX} at most</legend>
            {choices.map((text) => (
              <label key={text}>
                <input type="checkbox" checked={texts.includes(text)} disabled={!texts.includes(text) && texts.length >= METRICS_MAX}
                  onChange={(event) => choose(event.currentTarget.checked ? [...texts, text] : texts.filter((one) => one !== text))} />{" "}
                <span class="breaks">{metricTitle(readMetric(text)!)}</span>
              </label>
            ))}
          </fieldset>
        </details>
      )}
    </>
  );
}
