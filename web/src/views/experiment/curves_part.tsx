/** The curves of an experiment's best trials, live. */

import { useEffect } from "preact/hooks";
import type { ExperimentWhole } from "../../api/answers";
import { collect, get } from "../../api/client";
import { CurvePanel } from "../../curves/curve_panel";
import { areSingleValues } from "../../curves/optimization_history";
import { batchSize, needsTimes, offeredUnits, placePoints, recordsPerEpoch, type XUnit } from "../../curves/x_axis";
import { XChoice, useXUnit } from "../../curves/x_choice";
import { markOf, motionOfParts } from "../../live/owner";
import { useLive, type Live } from "../../live/use_live";
import { Shown } from "../../parts/status";
import { href, setQuery, useRoute } from "../../shell/router";
import { flatten, logNames } from "./all_trials";

const COUNTS = ["5", "10", "20", "50", "100", "200"];
// Of all curves together, so that an answer stays small.
const POINTS_MAX = 20_000;
// Trials whose batches are counted in records, and of a page of them.
const TRIALS_MAX = 10_000;
const PAGE = 250;

interface Props {
  experiment: ExperimentWhole;
  /** Called with whether each trial has a single value of the search's metric. */
  onSingleValues: (areSingle: boolean) => void;
}

export function CurvesPart({ experiment, onSingleValues }: Props) {
  const { query } = useRoute();
  const id = experiment.id!;
  const best = experiment.best_trial_id ?? null;
  const wanted = {
    group: query.get("group") ?? "validation",
    name: query.get("metric"),
    trials: COUNTS.find((count) => count === query.get("trials")) ?? "10",
  };
  const offered = offeredUnits(experiment.config);
  const unit = useXUnit(offered);
  const times = needsTimes(unit) || null;
  const sizes = useBatchSizes(experiment, unit);
  // The names that the best trial has reported are those that one may choose from.
  const names = useLive(`names ${best}`, async (signal) =>
    best === null ? [] : (await get("/api/v1/trials/{trial_id}/metrics/names", { path: { trial_id: best }, signal })).items,
    () => motionOfParts(experiment), markOf(experiment));
  const live = useLive(
    `curves ${id} ${JSON.stringify(wanted)} ${times}`,
    (signal) => get("/api/v1/experiments/{experiment_id}/metrics", { path: { experiment_id: id }, query: { ...wanted, times, hparams: true, points: Math.min(500, POINTS_MAX / Number(wanted.trials)) }, signal }),
    () => motionOfParts(experiment),
    markOf(experiment),
  );
  const chosen = wanted.name ?? experiment.metric;
  const areSingle = live.value ? areSingleValues(live.value.series) : null;
  useEffect(() => {
    if (areSingle !== null && wanted.name === null) onSingleValues(areSingle);
  }, [areSingle]);
  return (
    <>
      <div class="tools">
        <label>Metric{" "}
          <select value={JSON.stringify([wanted.group, chosen])}
            onChange={(event) => {
              const [group, metric] = JSON.parse(event.currentTarget.value) as [string, string];
              setQuery({ group, metric });
            }}>
            {nameChoices(names.value ?? [], wanted.group, chosen).map(([group, name]) => (
              <option key={`${group} ${name}`} value={JSON.stringify([group, name])}>{group}: {name}</option>
            ))}
          </select>
        </label>
        <label>Best trials{" "}
          <select value={wanted.trials} onChange={(event) => setQuery({ trials: event.currentTarget.value })}>
            {COUNTS.map((count) => <option key={count}>{count}</option>)}
          </select>
        </label>
        <XChoice offered={offered} unit={unit} />
      </div>
      <Shown live={sizes}>
        {(sizesOf) => (
          <Shown live={live}>
            {({ name, series }) => (
              <CurvePanel label={`trials of experiment ${id}`} yLabel={name} xUnit={unit}
                smallerIsBetter={name === experiment.metric ? experiment.smaller_is_better : undefined}
                curves={series.map(({ trial_id, points, started_ms: startedMs, hparams, best_metric: metric }) => ({
                  label: `trial ${trial_id}`, short: String(trial_id), href: href("trials", trial_id), metric: metric ?? null, isLess: experiment.smaller_is_better, hparams: flatten(hparams ?? {}), logs: logNames(experiment.config["hyperparameters"]),
                  points: placePoints(points, unit, { startedMs, batchSize: sizesOf.get(trial_id), recordsPerEpoch: recordsPerEpoch(experiment.config) }),
                }))} />
            )}
          </Shown>
        )}
      </Shown>
    </>
  );
}

/** The records in a batch of each trial, where the unit of the charts takes them. */
function useBatchSizes(experiment: ExperimentWhole, unit: XUnit): Live<Map<number, number>> {
  const isTaken = unit === "epochs" || unit === "records";
  const id = experiment.id!;
  return useLive(`batch sizes ${isTaken ? id : ""}`, async (signal) => {
    if (!isTaken) return new Map<number, number>();
    const path = { experiment_id: id };
    const trials = await collect((cursor) => get("/api/v1/experiments/{experiment_id}/trials", { path, query: { limit: PAGE, cursor }, signal }), TRIALS_MAX);
    return new Map(trials.items.map((trial) => [trial.id, batchSize(trial.hparams)]));
  }, () => (isTaken ? motionOfParts(experiment) : "still"), markOf(experiment));
}

function nameChoices(names: { group: string; name: string }[], group: string, chosen: string): string[][] {
  const choices = names.map((one) => [one.group, one.name]);
  const isThere = choices.some(([g, name]) => g === group && name === chosen);
  return isThere ? choices : [[group, chosen], ...choices];
}
