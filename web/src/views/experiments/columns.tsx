/** The columns of the list of experiments, and which of them are shown. */

import type { Schemas } from "../../api/client";
import { dollarsText, numberText } from "../../parts/format";
import { Labels } from "../../parts/labels";
import { ExperimentState, Moment, Progress } from "../../parts/status";
import type { Column } from "../../parts/table";
import { href } from "../../shell/router";
import { experimentsLink } from "../projects/projects_view";

export type Experiment = Schemas["Experiment"];

const KEY = "detcloud.experiment-columns";

export const COLUMNS: Column<Experiment>[] = [
  { key: "id", title: "Id", isNumber: true, order: "id", show: (one) => <a href={href("experiments", one.id!)}>{one.id}</a> },
  { key: "name", title: "Name", order: "name", show: (one) => <a href={href("experiments", one.id!)} title={one.name.slice(0, 1000)}>{one.name || "–"}</a> },
  { key: "labels", title: "Labels", show: (one) => <Labels labels={one.labels} /> },
  { key: "state", title: "State", order: "state", show: (one) => <ExperimentState experiment={one} /> },
  { key: "progress", title: "Progress", order: "progress", show: (one) => <Progress value={one.progress} /> },
  { key: "trials", title: "Trials", isNumber: true, show: (one) => `${one.trials.completed}/${one.trials.requested}` },
  { key: "best", title: "Best", isNumber: true, order: "metric", show: (one) => <span title={one.metric}>{numberText(one.best_metric)}</span> },
  { key: "searcher", title: "Searcher", show: (one) => one.searcher },
  { key: "pool", title: "Pool", show: (one) => <a href={href("pools", one.resource_pool)}>{one.resource_pool}</a> },
  { key: "workspace", title: "Workspace", show: ({ workspace }) => <a href={experimentsLink(workspace)}>{workspace}</a> },
  { key: "project", title: "Project", show: ({ workspace, project }) => <a href={experimentsLink(workspace, project)}>{project}</a> },
  { key: "user", title: "User", order: "user", show: ({ user }) => <a href={`${href("experiments")}?${new URLSearchParams({ user })}`}>{user}</a> },
  { key: "created", title: "Created", order: "submitted", show: (one) => <Moment ms={one.created_ms} /> },
  { key: "ended", title: "Ended", show: (one) => <Moment ms={one.ended_ms} /> },
  { key: "cost", title: "Cost", isNumber: true, order: "cost", show: (one) => dollarsText(one.cost) },
];

const SHOWN_AT_FIRST = COLUMNS.map(({ key }) => key).filter((key) => !["ended", "searcher", "workspace", "project"].includes(key));

export function shownColumns(): string[] {
  try {
    const kept: unknown = JSON.parse(localStorage.getItem(KEY) ?? "");
    if (Array.isArray(kept)) return COLUMNS.map(({ key }) => key).filter((key) => kept.includes(key));
  } catch {
    // Nothing was chosen yet, or by another version.
  }
  return SHOWN_AT_FIRST;
}

export function keepColumns(keys: string[]): void {
  localStorage.setItem(KEY, JSON.stringify(keys));
}
