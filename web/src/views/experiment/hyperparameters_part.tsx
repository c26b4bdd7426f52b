/** What the hyperparameters do to the metric: their importance, and each against the metric. */

import type { ExperimentWhole } from "../../api/answers";
import { rankImportance, type Importance } from "../../curves/importance";
import { Scatter, type Dot } from "../../curves/scatter";
import { numberText, valueText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { href } from "../../shell/router";
import { differingNames, useTrials } from "./all_trials";
import { HeatMapPart } from "./heat_map";
import { measuredTrials, type Measured } from "./measured_trials";
import { ParallelPart } from "./parallel_part";

export function HyperparametersPart({ experiment }: { experiment: ExperimentWhole }) {
  const live = useTrials(experiment);
  return (
    <Shown live={live}>
      {({ items, next }) => {
        const measured = measuredTrials(items);
        const names = differingNames(measured.map(({ hparams }) => hparams));
        if (names.length === 0) {
          return <Empty>This needs two trials with a value of {experiment.metric} that differ in a hyperparameter.</Empty>;
        }
        const important = rankImportance(measured);
        const shares = new Map(important.map(({ name, share }) => [name, share]));
        const ordered = [...names].sort((a, b) => (shares.get(b) ?? 0) - (shares.get(a) ?? 0));
        return (
          <>
            {next && <p class="quiet">Of the first {items.length} trials.</p>}
            <ImportanceList important={important} count={measured.length} />
            <ParallelPart names={ordered} measured={measured} experiment={experiment} />
            <HeatMapPart names={ordered} measured={measured} metric={experiment.metric}
              smallerIsBetter={experiment.smaller_is_better} />
            <h2>Metric by hyperparameter</h2>
            <div class="split">
              {ordered.map((name) => (
                <HyperparameterPlot key={name} name={name} measured={measured} experiment={experiment} />
              ))}
            </div>
          </>
        );
      }}
    </Shown>
  );
}

function ImportanceList({ important, count }: { important: Importance[]; count: number }) {
  if (important.length === 0) return <p class="quiet">Importance needs four trials with a value; there are {count}.</p>;
  return (
    <section>
      <h2>Importance</h2>
      <p class="quiet">
        How much of the ranking of {count} trials each hyperparameter explains by itself. Combined effects, and
        effects that rise and then fall, are not counted.
      </p>
      <dl class="facts">
        {important.map(({ name, share }) => (
          <div class="pair" key={name}>
            <dt>{name}</dt>
            <dd><meter min={0} max={1} value={share} aria-label={`importance of ${name}`} /> {Math.round(share * 100)} %</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function HyperparameterPlot(props: { name: string; measured: Measured[]; experiment: ExperimentWhole }) {
  const { name, experiment } = props;
  const measured = props.measured.filter(({ hparams }) => name in hparams);
  const values = measured.map(({ hparams }) => hparams[name]);
  const isNumeric = values.every((value) => typeof value === "number");
  const texts = [...new Set(values.map(valueText))];
  const dots = measured.map(({ id, metric, hparams }): Dot => ({
    key: id,
    x: isNumeric ? (hparams[name] as number) : texts.indexOf(valueText(hparams[name])),
    y: metric,
    href: href("trials", id),
    label: `trial ${id}: ${name} ${valueText(hparams[name])}, ${experiment.metric} ${numberText(metric)}`,
    isBest: id === experiment.best_trial_id,
  }));
  const xs = dots.map(({ x }) => x);
  const isLogX = isNumeric && Math.min(...xs) > 0 && Math.max(...xs) >= 100 * Math.min(...xs);
  return (
    <Scatter label={`${experiment.metric} by ${name}`} xLabel={name} yLabel={experiment.metric}
      dots={dots} isLogX={isLogX} {...(isNumeric ? {} : { ticks: texts })} />
  );
}
