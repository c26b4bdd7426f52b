/** Experiments of the start page: a line each, with what matters in their state. */

import type { Schemas } from "../../api/client";
import { countText, dollarsText, numberText, shortText } from "../../parts/format";
import { Badge, FailuresLink, Moment, Progress } from "../../parts/status";
import { href } from "../../shell/router";
import { failureText } from "../experiment/log_excerpt";

type Experiment = Schemas["Experiment"];

const MESSAGE_MAX = 200;

interface Props {
  items: Experiment[];
  /** The checked experiments; without this, rows have no boxes. */
  chosen?: ReadonlySet<number>;
  onChoose?: (id: number, isChosen: boolean) => void;
}

export function ExperimentRows({ items, chosen, onChoose }: Props) {
  return (
    <ul class="rows">
      {items.map((one) => (
        <li key={one.id}>
          <span class="row-name">
            {onChoose && <><input type="checkbox" aria-label={`choose ${one.id}`} checked={chosen?.has(one.id!)} onChange={(event) => onChoose(one.id!, event.currentTarget.checked)} />{" "}</>}
            <a href={href("experiments", one.id!)}>{one.name || `experiment ${one.id}`}</a>{" "}
            <span class="quiet">{one.id} · {one.user} · {one.workspace} / {one.project}</span>
          </span>
          <span class="row-state">{one.ended_ms ? <Badge state={one.condition} /> : <Progress value={one.progress} />}</span>
          <span class="row-text">{sentence(one)}</span>
          <span class="row-time quiet"><Moment ms={one.ended_ms ?? one.created_ms} isBrief /></span>
        </li>
      ))}
    </ul>
  );
}

/** What there is to say of an experiment: how it fails, or its trials and best result. */
function sentence(one: Experiment) {
  if (one.condition === "failed" && one.message) return <span class="bad" title={one.message}>{shortText(failureText(one.message), MESSAGE_MAX)}</span>;
  const { running, completed, errored, requested } = one.trials;
  const parts = [
    `${completed} of ${countText(requested, "trial")} done`,
    ...(running ? [`${running} running`] : []),
    ...(one.cost ? [dollarsText(one.cost)] : []),
  ];
  return (
    <>
      {parts.join(", ")}
      {errored > 0 && <>, <FailuresLink id={one.id!}>{errored} failed</FailuresLink></>}
      {one.best_metric !== null && one.best_metric !== undefined && (
        <>; {one.smaller_is_better ? "lowest" : "highest"} {one.metric} <strong>{numberText(one.best_metric)}</strong></>
      )}
    </>
  );
}
