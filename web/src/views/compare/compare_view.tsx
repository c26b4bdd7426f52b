/** Experiments and trials over one chart and one table. */

import { useState } from "preact/hooks";
import { get, type Schemas } from "../../api/client";
import { CurvePanel } from "../../curves/curve_panel";
import { toPoints } from "../../curves/joining";
import { useLive } from "../../live/use_live";
import { numberText, valueText } from "../../parts/format";
import { Heading } from "../../parts/heading";
import { Badge, Empty, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href, setQuery, useRoute } from "../../shell/router";
import { differingNames, flatten } from "../experiment/all_trials";
import { motionOf, type ExperimentWhole } from "../experiment/experiment_view";

interface Compared {
  trial: Schemas["Trial"];
  experiment: ExperimentWhole;
  /** What is drawn of it. */
  metric: Metric;
  points: unknown[][];
}

interface Metric {
  group: string;
  name: string;
}

const COMPARED_MAX = 50;
// Of more trials, the metrics that one may choose from are those of the first.
const NAMED_MAX = 10;

function readIds(text: string | null): number[] {
  const ids = (text ?? "").split(/[\s,]+/).filter((id) => /^\d{1,12}$/.test(id)).map(Number);
  return [...new Set(ids)].slice(0, COMPARED_MAX);
}

export function CompareView() {
  const { query } = useRoute();
  const experiments = readIds(query.get("experiments"));
  const trials = readIds(query.get("trials"));
  const [group, name] = [query.get("group"), query.get("metric")];
  const metric = group && name ? { group, name } : null;
  const live = useLive(
    `compare ${experiments} ${trials} ${JSON.stringify(metric)}`,
    (signal) => loadCompared(experiments, trials, metric, signal),
    (compared) => (compared.some(({ trial }) => motionOf(trial) === "moving") ? "moving" : "still"),
  );
  return (
    <>
      <Heading title="Compare" />
      <Chooser experiments={experiments} trials={trials} />
      <Shown live={live}>
        {(compared) => compared.length === 0
          ? <Empty>Give ids of experiments, each of which is shown by its best trial, or of trials.</Empty>
          : <Comparison compared={compared} />}
      </Shown>
    </>
  );
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
  const metrics = [...new Set(compared.map(({ metric }) => metric.name))];
  const directions = new Set(compared.map(directionOf));
  const experiments = [...new Map(compared.map(({ experiment }) => [experiment.id!, experiment])).values()];
  return (
    <>
      <MetricChoice compared={compared} />
      {metrics.length > 1 && <p class="quiet">Their searches go by different metrics: {metrics.join(", ")}.</p>}
      <CurvePanel label="what is compared" yLabel={metrics.join(", ")}
        smallerIsBetter={directions.size === 1 ? directionOf(compared[0]!) : undefined}
        curves={compared.map(({ trial, points }) => ({
          label: `trial ${trial.id} of experiment ${trial.experiment_id}`,
          points: toPoints(points),
          href: href("trials", trial.id),
        }))} />
      <Table label="what is compared" rows={compared} rowKey={({ trial }) => trial.id} columns={comparedColumns(compared)} />
      {experiments.length > 1 && <ConfigDifferences experiments={experiments} />}
    </>
  );
}

/** Whether less is better of what is drawn; unknown for a metric that its search does not go by. */
function directionOf({ experiment, metric }: Compared): boolean | undefined {
  const isSearched = metric.group === "validation" && metric.name === experiment.metric;
  return isSearched ? experiment.smaller_is_better : undefined;
}

function MetricChoice({ compared }: { compared: Compared[] }) {
  const { query } = useRoute();
  const ids = compared.slice(0, NAMED_MAX).map(({ trial }) => trial.id);
  const live = useLive(`metrics of ${ids}`, async (signal) => {
    const answers = await Promise.all(ids.map((id) => get("/api/v1/trials/{trial_id}/metrics/names", { path: { trial_id: id }, signal })));
    const names = answers.flatMap(({ items }) => items.map(({ group, name }) => JSON.stringify([group, name])));
    return [...new Set(names)].sort();
  }, () => "still");
  const [group, name] = [query.get("group"), query.get("metric")];
  const chosen = group && name ? JSON.stringify([group, name]) : "";
  const choices = [...new Set([...(live.value ?? []), ...(chosen ? [chosen] : [])])];
  function choose(text: string): void {
    const [nextGroup, nextName] = text ? (JSON.parse(text) as [string, string]) : [null, null];
    setQuery({ group: nextGroup, metric: nextName });
  }
  return (
    <div class="tools">
      <label>Metric{" "}
        <select value={chosen} onChange={(event) => choose(event.currentTarget.value)}>
          <option value="">what each search goes by</option>
          {choices.map((text) => <option key={text} value={text}>{(JSON.parse(text) as [string, string]).join(": ")}</option>)}
        </select>
      </label>
    </div>
  );
}

/** The fields in which the experiments' configurations differ, a column each. */
function ConfigDifferences({ experiments }: { experiments: ExperimentWhole[] }) {
  const flat = experiments.map(({ config }) => withoutNulls(flatten(config)));
  const rows = differingNames(flat).sort().map((field) => ({ field, values: flat.map((one) => one[field]) }));
  if (rows.length === 0) return <p class="quiet">Their configurations are the same.</p>;
  return (
    <>
      <h2>What differs in their configurations</h2>
      <Table label="what differs in their configurations" rows={rows} rowKey={({ field }) => field}
        columns={[
          { key: "field", title: "Field", show: ({ field }) => <code>{field}</code>, value: ({ field }) => field },
          ...experiments.map(({ id }, n): Column<(typeof rows)[number]> => ({
            key: `experiment ${id}`,
            title: `Experiment ${id}`,
            show: ({ values }) => (values[n] === undefined ? "–" : valueText(values[n])),
          })),
        ]} />
    </>
  );
}

function comparedColumns(compared: Compared[]): Column<Compared>[] {
  const flat = new Map(compared.map(({ trial }) => [trial.id, flatten(trial.hparams)]));
  const names = compared.length === 1 ? Object.keys(flat.get(compared[0]!.trial.id)!) : differingNames([...flat.values()]);
  return [
    { key: "trial", title: "Trial", isNumber: true, show: ({ trial }) => <a href={href("trials", trial.id)}>{trial.id}</a>, value: ({ trial }) => trial.id },
    { key: "experiment", title: "Experiment", isNumber: true, show: ({ trial }) => <a href={href("experiments", trial.experiment_id)}>{trial.experiment_id}</a>, value: ({ trial }) => trial.experiment_id },
    { key: "state", title: "State", show: ({ trial }) => <Badge state={trial.state} /> },
    { key: "metric", title: "Metric", show: ({ metric }) => metric.name },
    { key: "latest", title: "Latest", isNumber: true, show: ({ points }) => numberText(latestOf(points)), value: ({ points }) => latestOf(points) },
    { key: "best", title: "Best by its search", isNumber: true, show: ({ trial, experiment }) => <span title={experiment.metric}>{numberText(trial.best_metric)}</span>, value: ({ trial }) => trial.best_metric },
    { key: "steps", title: "Steps", isNumber: true, show: ({ trial }) => trial.steps_completed, value: ({ trial }) => trial.steps_completed },
    ...names.map((name): Column<Compared> => ({
      key: `hparams.${name}`,
      title: name,
      show: ({ trial }) => { const own = flat.get(trial.id)!; return name in own ? valueText(own[name]) : "–"; },
    })),
  ];
}

/** Without what is null: a field that is not there says the same. */
function withoutNulls(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null));
}

function latestOf(points: unknown[][]): number | null {
  const value = points.at(-1)?.[1];
  return typeof value === "number" ? value : null;
}

async function loadCompared(experiments: number[], trials: number[], metric: Metric | null, signal: AbortSignal): Promise<Compared[]> {
  // Many trials may be of one experiment, which is asked for once.
  const asked = new Map<number, Promise<ExperimentWhole>>();
  const experimentOf = (id: number) => {
    const answer = asked.get(id) ?? get("/api/v1/experiments/{experiment_id}", { path: { experiment_id: id }, signal });
    asked.set(id, answer);
    return answer;
  };
  const bests = (await Promise.all(experiments.map(experimentOf))).map(({ best_trial_id: best }) => best);
  const ids = [...new Set([...bests.filter((best) => best != null), ...trials])].slice(0, COMPARED_MAX);
  return Promise.all(ids.map(async (id): Promise<Compared> => {
    const path = { trial_id: id };
    const trial = await get("/api/v1/trials/{trial_id}", { path, signal });
    const experiment = await experimentOf(trial.experiment_id);
    const drawn = metric ?? { group: "validation", name: experiment.metric };
    const query = { group: drawn.group, name: [drawn.name], points: 500 };
    const { series } = await get("/api/v1/trials/{trial_id}/metrics/series", { path, query, signal });
    return { trial, experiment, metric: drawn, points: series[0]?.points ?? [] };
  }));
}
