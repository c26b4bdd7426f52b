/** Experiments over each other with all their trials: their courses, their curves and their figures. */

import type { ExperimentWhole } from "../../api/answers";
import { get, type Schemas } from "../../api/client";
import { CurveChart, CurveTools } from "../../curves/curve_panel";
import { ChartSourceContext } from "../../curves/chart_source";
import type { TrialCurve } from "../../curves/colour_by";
import { quantile } from "../../curves/quantile_band";
import { batchSize, needsTimes, offeredUnits, placePoints, recordsPerEpoch, type XUnit } from "../../curves/x_axis";
import { XChoice, useXUnit } from "../../curves/x_choice";
import { motionOf, motionOfParts } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { dollarsText, numberText } from "../../parts/format";
import { Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href } from "../../shell/router";
import { flatten, logNames } from "../experiment/all_trials";
import { OptimizationHistory, useSearches, type LoadedSearch } from "../experiment/optimization_part";

// Of all experiments together.
const CURVES_MAX = 200;
const POINTS_MAX = 20_000;

export function AllTrialsPart({ ids }: { ids: number[] }) {
  const live = useLive(
    `whole experiments ${ids}`,
    (signal) => Promise.all(ids.map((id) => get("/api/v1/experiments/{experiment_id}", { path: { experiment_id: id }, signal }))),
    (experiments) => (experiments.some((one) => motionOf(one) === "moving") ? "moving" : "resting"),
  );
  return <Shown live={live}>{(experiments) => <Overlay experiments={experiments} />}</Shown>;
}

function Overlay({ experiments }: { experiments: ExperimentWhole[] }) {
  const searches = useSearches(experiments);
  const ids = experiments.map(({ id }) => id!);
  return (
    <>
      <h2>Optimization history</h2>
      <Shown live={searches}>
        {(loaded) => (
          <>
            <ChartSourceContext.Provider value={{ kind: "history", experiments: ids }}><OptimizationHistory searches={loaded} /></ChartSourceContext.Provider>
            <Table label="experiments" rows={loaded} rowKey={({ experiment }) => experiment.id!} columns={COLUMNS} />
          </>
        )}
      </Shown>
      <ChartSourceContext.Provider value={{ kind: "curves", experiments: ids, settings: { trials: String(trialsOf(experiments)) } }}><CurvesOfAll experiments={experiments} /></ChartSourceContext.Provider>
    </>
  );
}

function CurvesOfAll({ experiments }: { experiments: ExperimentWhole[] }) {
  const units = experiments.map(({ config }) => offeredUnits(config));
  const offered = units[0]!.filter((unit) => units.every((others) => others.includes(unit)));
  const unit = useXUnit(offered);
  const times = needsTimes(unit) || null;
  const trials = trialsOf(experiments);
  const points = Math.max(3, Math.min(200, Math.floor(POINTS_MAX / CURVES_MAX)));
  const isMoving = experiments.some((one) => motionOfParts(one) === "moving");
  const live = useLive(
    `curves of all ${experiments.map(({ id }) => id)} ${times}`,
    (signal) => Promise.all(experiments.map(({ id }) =>
      get("/api/v1/experiments/{experiment_id}/metrics", { path: { experiment_id: id! }, query: { trials, points, times, hparams: true }, signal }))),
    () => (isMoving ? "moving" : "still"),
    experiments.map(({ state }) => state).join(),
  );
  const metrics = [...new Set(experiments.map(({ metric }) => metric))].join(", ");
  const directions = new Set(experiments.map(({ smaller_is_better: isLess }) => isLess));
  const isLess = directions.size === 1 ? [...directions][0] : undefined;
  return (
    <>
      <h2>Learning curves</h2>
      <Shown live={live}>
        {(answers) => {
          const curves = answers.flatMap((answer, n) => curvesOf(experiments[n]!, answer, unit));
          return (
            <>
              <div class="tools"><XChoice offered={offered} unit={unit} /></div>
              <CurveTools hasBest={isLess !== undefined} curves={curves} />
              <p class="quiet">The best {trials} trials of each experiment, at most.</p>
              <CurveChart label="all trials of what is compared" yLabel={metrics} smallerIsBetter={isLess} xUnit={unit} curves={curves} height={340} />
            </>
          );
        }}
      </Shown>
    </>
  );
}

/** The number of trials of each experiment. */
function trialsOf(experiments: ExperimentWhole[]): number {
  return Math.max(1, Math.floor(CURVES_MAX / experiments.length));
}

export function curvesOf(experiment: ExperimentWhole, { series }: Schemas["ExperimentSeries"], unit: XUnit): TrialCurve[] {
  return series.map(({ trial_id: id, points, started_ms: startedMs, hparams, best_metric: metric }) => ({
    label: `trial ${id} of experiment ${experiment.id}`,
    href: href("trials", id),
    group: `experiment ${experiment.id}`,
    metric: metric ?? null,
    isLess: experiment.smaller_is_better,
    hparams: flatten(hparams ?? {}),
    logs: logNames(experiment.config["hyperparameters"]),
    points: placePoints(points, unit, { startedMs, batchSize: batchSize(hparams ?? {}), recordsPerEpoch: recordsPerEpoch(experiment.config) }),
  }));
}

function metricsOf({ trials }: LoadedSearch): number[] {
  return trials.flatMap(({ best_metric: metric }) => (metric === null ? [] : [metric])).sort((a, b) => a - b);
}

function numberColumn(key: string, title: string, value: (search: LoadedSearch) => number | null, text: (value: number | null) => string = numberText): Column<LoadedSearch> {
  return { key, title, isNumber: true, show: (search) => text(value(search)), value };
}

const COLUMNS: Column<LoadedSearch>[] = [
  { key: "experiment", title: "Experiment", isNumber: true, show: ({ experiment: { id } }) => <a href={href("experiments", id!)}>{id}</a>, value: ({ experiment }) => experiment.id! },
  { key: "name", title: "Name", show: ({ experiment }) => experiment.name, value: ({ experiment }) => experiment.name },
  { key: "searcher", title: "Search", show: ({ experiment }) => experiment.searcher, value: ({ experiment }) => experiment.searcher },
  { key: "metric", title: "Metric", show: ({ experiment }) => `${experiment.metric}, ${experiment.smaller_is_better ? "smaller" : "larger"} is better` },
  numberColumn("trials", "Trials", ({ trials }) => trials.length),
  numberColumn("best", "Best", ({ experiment }) => experiment.best_metric ?? null),
  numberColumn("median", "Median", (search) => { const metrics = metricsOf(search); return metrics.length ? quantile(metrics, 0.5) : null; }),
  numberColumn("cost", "Cost", ({ experiment }) => experiment.cost, dollarsText),
];
