/** What each kind of chart of a report shows: the parts of the page's other views, with the settings of the chart. */

import type { ComponentChildren } from "preact";
import type { ExperimentWhole } from "../../api/answers";
import { collect, get } from "../../api/client";
import { CurveChart, CurveTools } from "../../curves/curve_panel";
import { needsTimes, offeredUnits } from "../../curves/x_axis";
import { XChoice, useXUnit } from "../../curves/x_choice";
import { markOf, motionOf, motionOfParts } from "../../live/owner";
import { useLive, type Live } from "../../live/use_live";
import { DeletedNote } from "../../parts/deleted_note";
import { dollarsText, numberText, valueText } from "../../parts/format";
import { Badge, Empty, Shown } from "../../parts/status";
import { href, useRoute } from "../../shell/router";
import { curvesOf } from "../compare/all_trials_part";
import { differingNames, flatten, logNames } from "../experiment/all_trials";
import { HeatMapPart } from "../experiment/heat_map";
import { HyperparameterPlot } from "../experiment/hyperparameters_part";
import { ImportancePart } from "../experiment/importance_part";
import { LengthChoice } from "../experiment/length_choice";
import { lengthText, useComparison, type Comparison } from "../experiment/length_results";
import { OptimizationHistory, useSearches } from "../experiment/optimization_part";
import { ParallelPart } from "../experiment/parallel_part";
import { ParetoPart } from "../experiment/pareto_part";
import { KINDS, type ChartSpec } from "./chart_block";
import { ExperimentTable } from "./experiment_table";
import { UnknownName } from "./unknown_name";

// Of all curves and points together, as in the view that compares.
const CURVES_MAX = 200;
const POINTS_MAX = 20_000;
const TRIALS_USUAL = 10;

export function ChartBody({ spec }: { spec: ChartSpec }) {
  return spec.kind === "table" ? <ExperimentTable spec={spec} /> : <ChartOf spec={spec} />;
}

function ChartOf({ spec }: { spec: ChartSpec }) {
  const live = useExperiments(spec);
  return (
    <Shown live={live}>
      {(experiments) => {
        const [first] = experiments;
        if (!first) return <Empty>No experiment matches <code>{spec.filter}</code>.</Empty>;
        if (spec.kind === "curves") return <CurvesOf experiments={experiments} />;
        if (spec.kind === "history") return <HistoryOf experiments={experiments} />;
        if (spec.kind === "pareto") return <ParetoPart experiment={first} />;
        if (spec.kind === "best") return <BestTrial experiment={first} />;
        return <ComparisonOf experiment={first} spec={spec} />;
      }}
    </Shown>
  );
}

/** The experiments of a chart: those with the ids, or the newest that match the filter. */
function useExperiments({ kind, experiments, filter }: ChartSpec): Live<ExperimentWhole[]> {
  const { many } = KINDS[kind];
  return useLive(
    `experiments of a report ${experiments} ${filter} ${many}`,
    async (signal) => {
      const ids = filter ? (await collect((cursor) => get("/api/v1/experiments", { query: { filter, limit: many, cursor }, signal }), many)).items.slice(0, many).map(({ id }) => id!) : experiments;
      return Promise.all(ids.map((id) => get("/api/v1/experiments/{experiment_id}", { path: { experiment_id: id }, signal })));
    },
    (found) => (found.some((one) => motionOf(one) === "moving") ? "moving" : "resting"),
  );
}

/** The curves of the best trials of each experiment. */
function CurvesOf({ experiments }: { experiments: ExperimentWhole[] }) {
  const { query } = useRoute();
  const units = experiments.map(({ config }) => offeredUnits(config));
  const offered = units[0]!.filter((unit) => units.every((others) => others.includes(unit)));
  const unit = useXUnit(offered);
  const most = Math.max(1, Math.floor(CURVES_MAX / experiments.length));
  const trials = Math.min(Number(query.get("trials") ?? TRIALS_USUAL), most);
  const wanted = {
    group: query.get("group") ?? "validation", name: query.get("metric"), trials, hparams: true, times: needsTimes(unit) || null,
    points: Math.min(500, Math.floor(POINTS_MAX / (trials * experiments.length))),
  };
  const live = useLive(
    `curves of a report ${experiments.map(({ id }) => id)} ${JSON.stringify(wanted)}`,
    (signal) => Promise.all(experiments.map(({ id }) => get("/api/v1/experiments/{experiment_id}/metrics", { path: { experiment_id: id! }, query: wanted, signal }))),
    () => (experiments.some((one) => motionOfParts(one) === "moving") ? "moving" : "still"),
    experiments.map(markOf).join(),
  );
  return (
    <Shown live={live}>
      {(answers) => {
        const names = [...new Set(answers.map(({ name }) => name))];
        const directions = new Set(answers.map(({ name }, n) => (name === experiments[n]!.metric && wanted.group === "validation" ? experiments[n]!.smaller_is_better : undefined)));
        const isLess = directions.size === 1 ? [...directions][0] : undefined;
        const curves = answers.flatMap((answer, n) => curvesOf(experiments[n]!, answer, unit));
        const shown = experiments.length > 1 ? curves : curves.map((curve) => ({ ...curve, short: curve.label.split(" ")[1]! }));
        const colour = query.get("colour");
        if (colour?.startsWith("hp.") && curves.length > 0 && !curves.some(({ hparams }) => colour.slice(3) in hparams!)) {
          return <UnknownName name="colour" value={colour} expected={["trial", "metric", ...new Set(curves.flatMap(({ hparams }) => Object.keys(hparams!).map((one) => `hp.${one}`)))]} />;
        }
        return (
          <>
            <div class="tools"><XChoice offered={offered} unit={unit} /></div>
            {wanted.group !== "validation" && experiments.map((one) => <DeletedNote key={one.id} of={{ metrics_deleted_ms: one.metrics_deleted_ms ?? null }} name={`experiment ${one.id}`} />)}
            <CurveTools hasBest={isLess !== undefined} curves={shown} />
            <CurveChart label={`trials of ${experimentWords(experiments)}`} yLabel={names.join(", ")} smallerIsBetter={isLess} xUnit={unit} curves={shown} />
          </>
        );
      }}
    </Shown>
  );
}

function experimentWords(experiments: ExperimentWhole[]): string {
  return `experiment${experiments.length > 1 ? "s" : ""} ${experiments.map(({ id }) => id).join(", ")}`;
}

function HistoryOf({ experiments }: { experiments: ExperimentWhole[] }) {
  const live = useSearches(experiments);
  return <Shown live={live}>{(searches) => <OptimizationHistory searches={searches} />}</Shown>;
}

/** The charts of hyperparameters, at one length of training. */
function ComparisonOf({ experiment, spec }: { experiment: ExperimentWhole; spec: ChartSpec }) {
  const live = useComparison(experiment);
  return (
    <Shown live={live}>
      {(comparison) => (
        <>
          <LengthChoice results={comparison.results} />
          <HyperparameterChart id={experiment.id!} logs={logNames(experiment.config["hyperparameters"])} comparison={comparison} kind={spec.kind} />
        </>
      )}
    </Shown>
  );
}

function HyperparameterChart({ id, logs, comparison, kind }: { id: number; logs: readonly string[]; comparison: Comparison; kind: ChartSpec["kind"] }) {
  const { query } = useRoute();
  const { results, measured, importance } = comparison;
  const { metric, at, unit } = results;
  if (kind === "importance") return <ImportancePart importance={importance} />;
  if (at === null || measured.length === 0) return <Empty>No trial of experiment {id} has a value of {metric}{at === null ? "" : ` at ${lengthText(at, unit)}`} yet.</Empty>;
  const shares = new Map(importance.items.map(({ name, share }) => [name, share]));
  const names = differingNames(measured.map(({ hparams }) => hparams)).sort((a, b) => (shares.get(b) ?? 0) - (shares.get(a) ?? 0));
  if (names.length === 0) return <Empty>The trials of experiment {id} with a value of {metric} at {lengthText(at, unit)} differ in no hyperparameter.</Empty>;
  const allowed: Record<string, string[]> = kind === "parallel" ? { colour: [...names, metric] } : { hyperparameter: names, x: names, y: names };
  for (const [name, expected] of Object.entries(allowed)) {
    const value = query.get(name);
    if (value !== null && !expected.includes(value)) return <UnknownName name={name} value={value} expected={expected} />;
  }
  const shown = { names, logs, measured, metric, smallerIsBetter: results.smaller_is_better ?? true, place: `at ${lengthText(at, unit)}, experiment ${id}` };
  if (kind === "parallel") return <ParallelPart {...shown} />;
  const chosen = query.get("hyperparameter")!;
  if (kind === "scatter") return <HyperparameterPlot {...shown} name={chosen} isLog={logs.includes(chosen)} best={results.best?.trial_id ?? null} />;
  if (names.length < 2) return <Empty>The trials of experiment {id} differ in one hyperparameter alone; expected two for this chart.</Empty>;
  return <HeatMapPart {...shown} />;
}

/** The best trial of an experiment in words and numbers. */
function BestTrial({ experiment }: { experiment: ExperimentWhole }) {
  const { id, name, condition, metric, best_metric: value, best_trial_id: best, smaller_is_better: isLess, cost } = experiment;
  const live = useLive(
    `best trial ${best}`,
    async (signal) => (best == null ? null : get("/api/v1/trials/{trial_id}", { path: { trial_id: best }, signal })),
    () => motionOfParts(experiment),
    markOf(experiment),
  );
  const fact = (title: string, content: ComponentChildren) => <><dt>{title}</dt><dd>{content}</dd></>;
  return (
    <Shown live={live}>
      {(trial) => (
        <dl class="facts">
          {fact("Experiment", <><a href={href("experiments", id!)}>{id}: {name}</a> <Badge state={condition} /></>)}
          {fact(`Best ${metric}`, trial ? <><strong>{numberText(value)}</strong> <span class="quiet">({isLess ? "smaller" : "larger"} is better)</span></> : "no trial has a value yet")}
          {trial && fact("Trial", <><a href={href("trials", trial.id)}>{trial.id}</a>, {trial.steps_completed} steps</>)}
          {trial && Object.entries(flatten(trial.hparams)).map(([one, setting]) => fact(one, valueText(setting)))}
          {fact("Cost of the experiment", dollarsText(cost))}
        </dl>
      )}
    </Shown>
  );
}
