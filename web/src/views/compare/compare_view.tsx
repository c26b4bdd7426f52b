/** Experiments and trials over one chart and one table. */

import { useState } from "preact/hooks";
import { get, type Schemas } from "../../api/client";
import { CurvePanel } from "../../curves/curve_panel";
import { toPoints } from "../../curves/joining";
import { useLive } from "../../live/use_live";
import { numberText, valueText } from "../../parts/format";
import { Badge, Empty, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href, setQuery, useRoute } from "../../shell/router";
import { differingNames, flatten } from "../experiment/all_trials";
import { motionOf } from "../experiment/experiment_view";

interface Compared {
  trial: Schemas["Trial"];
  metric: string;
  smallerIsBetter: boolean;
  points: unknown[][];
}

const COMPARED_MAX = 50;

function readIds(text: string | null): number[] {
  const ids = (text ?? "").split(/[\s,]+/).filter((id) => /^\d{1,12}$/.test(id)).map(Number);
  return [...new Set(ids)].slice(0, COMPARED_MAX);
}

export function CompareView() {
  const { query } = useRoute();
  const experiments = readIds(query.get("experiments"));
  const trials = readIds(query.get("trials"));
  const live = useLive(
    `compare ${experiments} ${trials}`,
    (signal) => loadCompared(experiments, trials, signal),
    (compared) => (compared.some(({ trial }) => motionOf(trial) === "moving") ? "moving" : "still"),
  );
  return (
    <>
      <h1>Compare</h1>
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
  const metrics = [...new Set(compared.map(({ metric }) => metric))];
  const directions = new Set(compared.map(({ smallerIsBetter }) => smallerIsBetter));
  return (
    <>
      {metrics.length > 1 && <p class="quiet">These are compared by different metrics: {metrics.join(", ")}.</p>}
      <CurvePanel label="what is compared" yLabel={metrics.join(", ")}
        smallerIsBetter={directions.size === 1 ? compared[0]!.smallerIsBetter : undefined}
        curves={compared.map(({ trial, points }) => ({
          label: `trial ${trial.id} of experiment ${trial.experiment_id}`,
          points: toPoints(points),
          href: href("trials", trial.id),
        }))} />
      <Table label="what is compared" rows={compared} rowKey={({ trial }) => trial.id} columns={comparedColumns(compared)} />
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
    { key: "metric", title: "Metric", show: ({ metric }) => metric },
    { key: "best", title: "Best", isNumber: true, show: ({ trial }) => numberText(trial.best_metric), value: ({ trial }) => trial.best_metric },
    { key: "steps", title: "Steps", isNumber: true, show: ({ trial }) => trial.steps_completed, value: ({ trial }) => trial.steps_completed },
    ...names.map((name): Column<Compared> => ({
      key: `hparams.${name}`,
      title: name,
      show: ({ trial }) => { const own = flat.get(trial.id)!; return name in own ? valueText(own[name]) : "–"; },
    })),
  ];
}

async function loadCompared(experiments: number[], trials: number[], signal: AbortSignal): Promise<Compared[]> {
  const bests = await Promise.all(experiments.map(async (experiment_id) => {
    const { best_trial_id: best } = await get("/api/v1/experiments/{experiment_id}", { path: { experiment_id }, signal });
    return best;
  }));
  const ids = [...new Set([...bests.filter((best) => best != null), ...trials])].slice(0, COMPARED_MAX);
  return Promise.all(ids.map((id) => loadTrial(id, signal)));
}

async function loadTrial(id: number, signal: AbortSignal): Promise<Compared> {
  const path = { trial_id: id };
  const trial = await get("/api/v1/trials/{trial_id}", { path, signal });
  const { metric, smaller_is_better: smallerIsBetter } = await get("/api/v1/experiments/{experiment_id}", { path: { experiment_id: trial.experiment_id }, signal });
  const query = { group: "validation", name: [metric], points: 500 };
  const { series } = await get("/api/v1/trials/{trial_id}/metrics/series", { path, query, signal });
  return { trial, metric, smallerIsBetter, points: series[0]?.points ?? [] };
}
