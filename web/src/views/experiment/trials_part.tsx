/** The trials of an experiment in one table, the best first, with what they differ in. */

import { useState } from "preact/hooks";
import type { ExperimentWhole } from "../../api/answers";
import { countText, dollarsText, durationText, numberText, stepsText, valueText } from "../../parts/format";
import { Badge, Empty, Moment, Progress, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href, setQuery, useRoute } from "../../shell/router";
import { differingNames, flatten, useTrials, type Trial } from "./all_trials";

type Row = Trial & { flat: Record<string, unknown> };

// As many trials as a chart of the view Compare shows well.
const COMPARED = 5;

export function TrialsPart({ experiment }: { experiment: ExperimentWhole }) {
  const { query } = useRoute();
  const [chosen, setChosen] = useState<Set<string | number>>(new Set());
  const live = useTrials(experiment);
  const states = (query.get("state") ?? "").split(",").filter(Boolean);
  return (
    <Shown live={live}>
      {({ items, next }) => {
        if (items.length === 0) return <Empty>No trials yet.</Empty>;
        const rows = items.map((trial) => ({ ...trial, flat: flatten(trial.hparams) }));
        const shown = states.length ? rows.filter(({ condition }) => states.includes(condition)) : rows;
        const best = bestTrials(rows, experiment.smaller_is_better).slice(0, COMPARED);
        return (
          <>
            <div class="tools">
              <StateFilter rows={rows} chosen={states} />
              {chosen.size > 0
                ? <><span class="quiet">{chosen.size} selected</span> <a href={compareLink([...chosen])}>Compare selected</a></>
                : best.length > 1 && <a href={compareLink(best.map(({ id }) => id))}>Compare the best {best.length}</a>}
            </div>
            {shown.length === 0
              ? <Empty>No trials are in these states.</Empty>
              : <Table label="trials" chosen={chosen} onChoose={setChosen} rows={shown} rowKey={({ id }) => id}
                  initialOrder={{ by: "best", descending: !experiment.smaller_is_better }} columns={trialColumns(rows, experiment)} />}
            <p class="quiet">{countText(shown.length, "trial")}{next ? ", the first of more: sorting is among these" : ""}</p>
          </>
        );
      }}
    </Shown>
  );
}

/** A button for each state that a trial is in, with the number of trials. Without a pressed button, all trials are shown. */
function StateFilter({ rows, chosen }: { rows: Row[]; chosen: string[] }) {
  const counts = new Map<string, number>(chosen.map((state) => [state, 0]));
  for (const { condition } of rows) counts.set(condition, (counts.get(condition) ?? 0) + 1);
  if (counts.size < 2 && chosen.length === 0) return null;
  const toggle = (state: string) =>
    setQuery({ state: (chosen.includes(state) ? chosen.filter((one) => one !== state) : [...chosen, state]).join(",") });
  return (
    <span class="states" role="group" aria-label="State">
      {[...counts].map(([state, count]) => (
        <button key={state} type="button" aria-pressed={chosen.includes(state)} onClick={() => toggle(state)}>{state} <span class="quiet">{count}</span></button>
      ))}
    </span>
  );
}

/** The trials with a metric, the best first. Of equal trials the first one comes first. */
export function bestTrials<T extends { best_metric: number | null }>(trials: readonly T[], smallerIsBetter: boolean): T[] {
  const sign = smallerIsBetter ? 1 : -1;
  return trials.filter(({ best_metric: metric }) => metric !== null).sort((one, other) => sign * (one.best_metric! - other.best_metric!));
}

/** The share of a trial's length that is done, from 0 to 1, or null if the length is not known. */
export function trialProgress({ state, steps_completed: steps, target_steps: batches, target_epochs: epochs, epochs_completed: done }: Trial): number | null {
  if (state === "COMPLETED") return 1;
  if (batches !== null && batches > 0) return Math.min(1, steps / batches);
  return epochs !== null && epochs > 0 ? Math.min(1, (done ?? 0) / epochs) : null;
}

function compareLink(ids: readonly (string | number)[]): string {
  return `${href("compare")}?trials=${ids.join(",")}`;
}

function trialColumns(rows: Row[], experiment: ExperimentWhole): Column<Row>[] {
  const { metric, smaller_is_better: smallerIsBetter, best_trial_id: bestId } = experiment;
  const hparams = differingNames(rows.map(({ flat }) => flat)).map((name): Column<Row> => ({
    key: `hparams.${name}`,
    title: name,
    isNumber: rows.every(({ flat }) => !(name in flat) || typeof flat[name] === "number"),
    show: ({ flat }) => (name in flat ? valueText(flat[name]) : "–"),
    value: ({ flat }) => (typeof flat[name] === "number" ? (flat[name] as number) : name in flat ? valueText(flat[name]) : null),
  }));
  const best = `Best ${metric}, ${smallerIsBetter ? "smallest" : "largest"} first`;
  return [
    { key: "id", title: "Trial", isNumber: true, show: ({ id }) => <><a href={href("trials", id)}>{id}</a>{id === bestId && <span class="best" title={best}> ★<span class="hidden"> best trial</span></span>}</>, value: ({ id }) => id },
    { key: "state", title: "State", show: ({ condition }) => <Badge state={condition} />, value: ({ condition }) => condition },
    { key: "progress", title: "Progress", show: (trial) => (trial.state === "COMPLETED" ? "100 %" : <Progress value={trialProgress(trial)} />), value: trialProgress },
    { key: "best", title: `Best ${metric}`, isNumber: true, show: (trial) => numberText(trial.best_metric), value: (trial) => trial.best_metric },
    { key: "metric", title: "Latest", isNumber: true, show: (trial) => numberText(trial.metric), value: (trial) => trial.metric },
    { key: "steps", title: "Steps", isNumber: true, show: stepsText, value: (trial) => trial.steps_completed },
    ...hparams,
    { key: "restarts", title: "Failures", isNumber: true, show: ({ restarts }) => restarts, value: ({ restarts }) => restarts },
    { key: "created", title: "Created", show: (trial) => <Moment ms={trial.created_ms} isBrief />, value: (trial) => trial.created_ms },
    { key: "duration", title: "Duration", isNumber: true, show: (trial) => durationText(durationMs(trial)), value: durationMs },
    { key: "cost", title: "Cost", isNumber: true, show: ({ cost }) => dollarsText(cost), value: ({ cost }) => cost },
    { key: "actions", title: "Logs", show: ({ id }) => <a href={href("trials", id, "logs")} aria-label={`logs of trial ${id}`}>logs</a> },
  ];
}

/** The time from the creation of a trial to its end, or until now. */
function durationMs({ created_ms: created, ended_ms: ended }: Trial): number {
  return (ended ?? Date.now()) - created;
}
