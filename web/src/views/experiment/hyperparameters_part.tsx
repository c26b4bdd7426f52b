/** What the hyperparameters do to the metric after one length of training. */

import "./comparison.css";
import type { ExperimentWhole } from "../../api/answers";
import { ChartFrame } from "../../curves/chart_frame";
import { ChartSourceContext, type ChartSource } from "../../curves/chart_source";
import { InTurnPart } from "../../curves/in_turn_part";
import { rowsCsv } from "../../curves/save_chart";
import { Scatter, type Dot } from "../../curves/scatter";
import { countText, numberText, valueText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { href } from "../../shell/router";
import { differingNames, logNames } from "./all_trials";
import { DistributionPart } from "./distribution_part";
import { HeatMapPart } from "./heat_map";
import { ImportancePart } from "./importance_part";
import { LengthChoice } from "./length_choice";
import { lengthText, useComparison, type Comparison, type Measured } from "./length_results";
import { ParallelPart } from "./parallel_part";

export function HyperparametersPart({ experiment }: { experiment: ExperimentWhole }) {
  const live = useComparison(experiment);
  return (
    <Shown live={live}>
      {(comparison) => (
        <>
          <LengthChoice results={comparison.results} />
          <Charts comparison={comparison} id={experiment.id!} logs={logNames(experiment.config["hyperparameters"])} />
        </>
      )}
    </Shown>
  );
}

function Charts({ comparison, id, logs }: { comparison: Comparison; id: number; logs: readonly string[] }) {
  const { results, measured, importance } = comparison;
  const { metric, at, unit, trials, trials_left_out: leftOut } = results;
  const names = differingNames(measured.map(({ hparams }) => hparams));
  if (at === null || measured.length === 0) {
    return <Empty>No trial has a value of {metric}{at === null ? "" : ` at ${lengthText(at, unit)}`} yet.</Empty>;
  }
  if (names.length === 0) {
    return <Empty>This needs two trials with a value of {metric} at {lengthText(at, unit)} that differ in a hyperparameter.</Empty>;
  }
  const shares = new Map(importance.items.map(({ name, share }) => [name, share]));
  const ordered = [...names].sort((a, b) => (shares.get(b) ?? 0) - (shares.get(a) ?? 0));
  const place = `at ${lengthText(at, unit)}, experiment ${id}`;
  const sourceOf = (kind: ChartSource["kind"]): ChartSource => ({ kind, experiments: [id] });
  const shown = { names: ordered, logs, measured, metric, smallerIsBetter: results.smaller_is_better ?? true, place };
  return (
    <>
      {leftOut > 0 && <p class="quiet">{trials} of {countText(trials + leftOut, "trial")}, spread evenly over the search.</p>}
      <div class="split">
        <ImportancePart importance={importance} />
        <ChartSourceContext.Provider value={sourceOf("contour")}><HeatMapPart {...shown} /></ChartSourceContext.Provider>
      </div>
      <InTurnPart height={400}>
        {() => <ChartSourceContext.Provider value={sourceOf("parallel")}><ParallelPart {...shown} /></ChartSourceContext.Provider>}
      </InTurnPart>
      <InTurnPart height={300}>
        {() => <DistributionPart metrics={measured.map((one) => one.metric)} metric={metric} smallerIsBetter={shown.smallerIsBetter} place={place} />}
      </InTurnPart>
      <h2>Metric by hyperparameter</h2>
      <div class="split">
        {ordered.map((name) => (
          <InTurnPart key={name} height={300}>
            {() => (
              <ChartSourceContext.Provider value={{ ...sourceOf("scatter"), settings: { hyperparameter: name } }}>
                <HyperparameterPlot name={name} isLog={logs.includes(name)} measured={measured} metric={metric} best={results.best?.trial_id ?? null} place={place} />
              </ChartSourceContext.Provider>
            )}
          </InTurnPart>
        ))}
      </div>
    </>
  );
}

export function HyperparameterPlot(props: { name: string; isLog: boolean; measured: Measured[]; metric: string; best: number | null; place: string }) {
  const { name, isLog, metric: metricName, best, place } = props;
  const measured = props.measured.filter(({ hparams }) => name in hparams);
  const values = measured.map(({ hparams }) => hparams[name]);
  const isNumeric = values.every((value) => typeof value === "number");
  const texts = [...new Set(values.map(valueText))];
  const dots = measured.map(({ id, metric, hparams }): Dot => ({
    key: id,
    x: isNumeric ? (hparams[name] as number) : texts.indexOf(valueText(hparams[name])),
    y: metric,
    href: href("trials", id),
    label: `trial ${id}: ${name} ${valueText(hparams[name])}, ${metricName} ${numberText(metric)}`,
    isBest: id === best,
  }));
  const xs = dots.map(({ x }) => x);
  const isLogX = isNumeric && Math.min(...xs) > 0 && (isLog || Math.max(...xs) >= 100 * Math.min(...xs));
  const label = `${metricName} by ${name}`;
  const csv = () => rowsCsv(["trial", name, metricName], measured.map(({ id, metric, hparams }) => [id, hparams[name], metric]));
  return (
    <ChartFrame name={label} title={`${label} ${place}`} csv={csv}>
      <Scatter label={label} xLabel={name} yLabel={metricName} dots={dots} isLogX={isLogX} {...(isNumeric ? {} : { ticks: texts })} />
    </ChartFrame>
  );
}
