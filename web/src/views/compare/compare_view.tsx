/** Experiments and trials over charts and tables. */

import { useState } from "preact/hooks";
import { CurveChart, CurveTools } from "../../curves/curve_panel";
import { batchSize, needsTimes, offeredUnits, placePoints, recordsPerEpoch, type XUnit } from "../../curves/x_axis";
import { XChoice, useXUnit } from "../../curves/x_choice";
import { markOf, motionOf } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { DeletedNote } from "../../parts/deleted_note";
import { numberText, valueText } from "../../parts/format";
import { Heading } from "../../parts/heading";
import { Badge, Empty, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href, setQuery, useRoute } from "../../shell/router";
import { differingNames, flatten, logNames } from "../experiment/all_trials";
import { AllTrialsPart } from "./all_trials_part";
import { ConfigDifferences, HyperparameterTable } from "./differences";
import { COMPARED_MAX, loadCompared, loadCurves, metricTitle, readMetrics, type Compared, type Drawn, type Metric } from "./load_compared";
import { MetricChoice, useMetricNames } from "./metric_choice";
import { ObjectivesPart } from "./objectives";

function readIds(text: string | null): number[] {
  const ids = (text ?? "").split(/[\s,]+/).filter((id) => /^\d{1,12}$/.test(id)).map(Number);
  return [...new Set(ids)].slice(0, COMPARED_MAX);
}

export function CompareView() {
  const { query } = useRoute();
  const experiments = readIds(query.get("experiments"));
  const trials = readIds(query.get("trials"));
  const areAll = experiments.length > 0 && query.get("trials-of") === "all";
  const live = useLive(`compare ${experiments} ${trials}`, (signal) => loadCompared(experiments, trials, signal), motionOfAll);
  return (
    <>
      <Heading title="Compare" />
      <Chooser key={`${experiments} ${trials}`} experiments={experiments} trials={trials} />
      {experiments.length > 0 && (
        <div class="states" role="group" aria-label="trials of the experiments">
          <button aria-pressed={!areAll} onClick={() => setQuery({ "trials-of": null })}>Best trials</button>
          <button aria-pressed={areAll} onClick={() => setQuery({ "trials-of": "all" })}>All trials</button>
        </div>
      )}
      {areAll && <AllTrialsPart ids={experiments} />}
      <Shown live={live}>
        {(compared) => areAll ? null : compared.length === 0
          ? <Empty>Enter ids of experiments or trials. An experiment is shown by its best trial. You can also select rows in a list of experiments or trials and click Compare.</Empty>
          : <Comparison compared={compared} />}
      </Shown>
    </>
  );
}

function motionOfAll(compared: Compared[]): "moving" | "still" {
  return compared.some(({ trial }) => motionOf(trial) === "moving") ? "moving" : "still";
}

function Chooser({ experiments, trials }: { experiments: number[]; trials: number[] }) {
  const [texts, setTexts] = useState({ experiments: experiments.join(", "), trials: trials.join(", ") });
  function submit(event: Event): void {
    event.preventDefault();
    setQuery({ experiments: readIds(texts.experiments).join(","), trials: readIds(texts.trials).join(",") });
  }
  return (
    <form class="tools" onSubmit={submit}>
      <label>Experiments <input value={texts.experiments} onInput={(event) => setTexts({ ...texts, experiments: event.currentTarget.value })} /></label>
      <label>Trials <input value={texts.trials} onInput={(event) => setTexts({ ...texts, trials: event.currentTarget.value })} /></label>
      <button>Compare</button>
    </form>
  );
}

function Comparison({ compared }: { compared: Compared[] }) {
  const { query } = useRoute();
  const metrics = readMetrics(query);
  const names = useMetricNames(compared);
  const offered = unitsOf(compared);
  const unit = useXUnit(offered);
  const motion = motionOfAll(compared);
  const experiments = [...new Map(compared.map(({ experiment }) => [experiment.id!, experiment])).values()];
  const marks = compared.map(({ trial }) => `${trial.id} ${markOf(trial)}`).join();
  const live = useLive(
    `curves of ${compared.map(({ trial }) => trial.id)} ${JSON.stringify(metrics)} ${needsTimes(unit)}`,
    (signal) => loadCurves(compared, metrics, needsTimes(unit), signal),
    () => motion,
    marks,
  );
  return (
    <>
      <div class="tools">
        <MetricChoice names={names} chosen={metrics} />
        <XChoice offered={offered} unit={unit} />
      </div>
      {compared.map(({ trial: { id, metrics_deleted_ms } }) => <DeletedNote key={id} of={{ metrics_deleted_ms }} name={`trial ${id}`} />)}
      <Shown live={live}>{(drawn) => <Curves drawn={drawn} metrics={metrics} unit={unit} />}</Shown>
      <HyperparameterTable compared={compared} />
      <ObjectivesPart compared={compared} names={names.value ?? []} motion={motion} />
      {experiments.length > 1 && <ConfigDifferences experiments={experiments} />}
    </>
  );
}

/** A chart for each metric, and all of them in a table. */
function Curves({ drawn, metrics, unit }: { drawn: Drawn[]; metrics: Metric[]; unit: XUnit }) {
  const searched = [...new Set(drawn.flatMap(({ curves }) => curves.map(({ metric }) => metric.name)))];
  const charts = metrics.length ? metrics.map((metric) => (metrics.length > 1 ? metricTitle(metric) : metric.name)) : [searched.join(", ")];
  return (
    <>
      {metrics.length === 0 && searched.length > 1 && <p class="quiet">The searches use different metrics: {searched.join(", ")}.</p>}
      <CurveTools hasBest={charts.some((_, n) => directionOf(drawn, n) !== undefined)} />
      <div class={charts.length > 1 ? "split" : ""}>
        {charts.map((title, n) => (
          <CurveChart key={title} label="what is compared" yLabel={title} height={charts.length > 1 ? 240 : 300}
            smallerIsBetter={directionOf(drawn, n)} xUnit={unit}
            curves={drawn.map(({ trial, experiment, startedMs, curves }) => ({
              label: `trial ${trial.id} of experiment ${trial.experiment_id}`,
              short: String(trial.id), metric: trial.best_metric, isLess: experiment.smaller_is_better, hparams: flatten(trial.hparams), logs: logNames(experiment.config["hyperparameters"]),
              points: placePoints(curves[n]?.points ?? [], unit, { startedMs, batchSize: batchSize(trial.hparams), recordsPerEpoch: recordsPerEpoch(experiment.config) }),
              href: href("trials", trial.id),
            }))} />
        ))}
      </div>
      <Table label="what is compared" rows={drawn} rowKey={({ trial }) => trial.id} columns={comparedColumns(drawn, metrics)} />
    </>
  );
}

/** The units that all of them can be drawn over. */
function unitsOf(compared: Compared[]): XUnit[] {
  const units = compared.map(({ experiment }) => offeredUnits(experiment.config));
  return units[0]!.filter((unit) => units.every((others) => others.includes(unit)));
}

/** Whether less is better of the nth chart; unknown where a search does not go by it, or they differ. */
function directionOf(drawn: Drawn[], n: number): boolean | undefined {
  const directions = new Set(drawn.map(({ experiment, curves }) => {
    const metric = curves[n]?.metric;
    return metric?.group === "validation" && metric.name === experiment.metric ? experiment.smaller_is_better : undefined;
  }));
  return directions.size === 1 ? [...directions][0] : undefined;
}

function comparedColumns(drawn: Drawn[], metrics: Metric[]): Column<Drawn>[] {
  const flat = new Map(drawn.map(({ trial }) => [trial.id, flatten(trial.hparams)]));
  const names = differingNames([...flat.values()]);
  return [
    { key: "trial", title: "Trial", isNumber: true, show: ({ trial }) => <a href={href("trials", trial.id)}>{trial.id}</a>, value: ({ trial }) => trial.id },
    { key: "experiment", title: "Experiment", isNumber: true, show: ({ trial }) => <a href={href("experiments", trial.experiment_id)}>{trial.experiment_id}</a>, value: ({ trial }) => trial.experiment_id },
    { key: "state", title: "State", show: ({ trial }) => <Badge state={trial.condition} /> },
    ...(metrics.length > 1
      ? metrics.map((metric, n): Column<Drawn> => ({
          key: `latest ${metricTitle(metric)}`,
          title: metricTitle(metric),
          isNumber: true,
          show: (one) => numberText(latestOf(one, n)),
          value: (one) => latestOf(one, n),
        }))
      : [
          { key: "metric", title: "Metric", show: ({ curves }: Drawn) => curves[0]?.metric.name },
          { key: "latest", title: "Latest", isNumber: true, show: (one: Drawn) => numberText(latestOf(one, 0)), value: (one: Drawn) => latestOf(one, 0) },
        ]),
    { key: "best", title: "Best by search metric", isNumber: true, show: ({ trial, experiment }) => <span title={experiment.metric}>{numberText(trial.best_metric)}</span>, value: ({ trial }) => trial.best_metric },
    { key: "steps", title: "Steps", isNumber: true, show: ({ trial }) => trial.steps_completed, value: ({ trial }) => trial.steps_completed },
    ...names.map((name): Column<Drawn> => ({
      key: `hparams.${name}`,
      title: name,
      isNumber: [...flat.values()].every((own) => !(name in own) || typeof own[name] === "number"),
      show: ({ trial }) => { const own = flat.get(trial.id)!; return name in own ? valueText(own[name]) : "–"; },
    })),
  ];
}

function latestOf({ curves }: Drawn, n: number): number | null {
  const value = curves[n]?.points.at(-1)?.[1];
  return typeof value === "number" ? value : null;
}
