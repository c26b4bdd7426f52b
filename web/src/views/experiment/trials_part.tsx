/** The trials of an experiment in one table, with what they differ in. */

import { useState } from "preact/hooks";
import type { ExperimentWhole } from "../../api/answers";
import { countText, numberText, stepsText, valueText } from "../../parts/format";
import { Badge, Empty, Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href } from "../../shell/router";
import { differingNames, flatten, useTrials, type Trial } from "./all_trials";

type Row = Trial & { flat: Record<string, unknown> };

export function TrialsPart({ experiment }: { experiment: ExperimentWhole }) {
  const [chosen, setChosen] = useState<Set<string | number>>(new Set());
  const live = useTrials(experiment);
  return (
    <Shown live={live}>
      {({ items, next }) => {
        if (items.length === 0) return <Empty>No trials yet.</Empty>;
        const rows = items.map((trial) => ({ ...trial, flat: flatten(trial.hparams) }));
        return (
          <>
            <div class="tools">
              <span class="quiet">{chosen.size ? `${chosen.size} selected` : "0 selected"}</span>
              {chosen.size > 0 && <a href={`${href("compare")}?trials=${[...chosen].join(",")}`}>Compare</a>}
            </div>
            <Table label="trials" chosen={chosen} onChoose={setChosen} rows={rows} rowKey={({ id }) => id} columns={trialColumns(rows, experiment.metric)} />
            <p class="quiet">{countText(items.length, "trial")}{next ? ", the first of more: sorting is among these" : ""}</p>
          </>
        );
      }}
    </Shown>
  );
}

function trialColumns(rows: Row[], metric: string): Column<Row>[] {
  const hparams = differingNames(rows.map(({ flat }) => flat)).map((name): Column<Row> => ({
    key: `hparams.${name}`,
    title: name,
    show: ({ flat }) => (name in flat ? valueText(flat[name]) : "–"),
    value: ({ flat }) => (typeof flat[name] === "number" ? (flat[name] as number) : name in flat ? valueText(flat[name]) : null),
  }));
  return [
    { key: "id", title: "Trial", isNumber: true, show: ({ id }) => <a href={href("trials", id)}>{id}</a>, value: ({ id }) => id },
    { key: "state", title: "State", show: ({ condition }) => <Badge state={condition} />, value: ({ condition }) => condition },
    { key: "best", title: `Best ${metric}`, isNumber: true, show: (trial) => numberText(trial.best_metric), value: (trial) => trial.best_metric },
    { key: "metric", title: "Latest", isNumber: true, show: (trial) => numberText(trial.metric), value: (trial) => trial.metric },
    { key: "steps", title: "Steps", isNumber: true, show: stepsText, value: (trial) => trial.steps_completed },
    ...hparams,
    { key: "restarts", title: "Failures", isNumber: true, show: ({ restarts }) => restarts, value: ({ restarts }) => restarts },
    { key: "created", title: "Created", show: (trial) => <Moment ms={trial.created_ms} />, value: (trial) => trial.created_ms },
    { key: "actions", title: "Logs", show: ({ id }) => <a href={href("trials", id, "logs")} aria-label={`logs of trial ${id}`}>logs</a> },
  ];
}
