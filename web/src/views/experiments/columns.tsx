/** The columns of the list of experiments, and which of them are shown. */

import type { Schemas } from "../../api/client";
import { dollarsText, numberText, valueText } from "../../parts/format";
import { Labels } from "../../parts/labels";
import { ExperimentState, Moment, Progress } from "../../parts/status";
import type { Column } from "../../parts/table";
import { href } from "../../shell/router";
import { experimentsLink } from "../projects/projects_view";
import { BestCurve } from "./best_curve";
import { BestMetric } from "./best_metric";
import { isValueColumn } from "./order";

export type Experiment = Schemas["Experiment"];

const KEY = "detcloud.experiment-columns";
/** As many as the cluster answers in a request. */
export const VALUE_COLUMNS_MAX = 20;

export const COLUMNS: Column<Experiment>[] = [
  { key: "id", title: "Id", isNumber: true, order: "id", show: (one) => <a href={href("experiments", one.id!)}>{one.id}</a> },
  { key: "name", title: "Name", order: "name", show: (one) => <a href={href("experiments", one.id!)} title={one.name.slice(0, 1000)}>{one.name || "–"}</a> },
  { key: "labels", title: "Labels", show: (one) => <Labels labels={one.labels} /> },
  { key: "state", title: "State", order: "state", show: (one) => <ExperimentState experiment={one} /> },
  { key: "signal", title: "Signal", show: (one) => one.signal },
  { key: "progress", title: "Progress", order: "progress", show: (one) => <Progress value={one.progress} /> },
  { key: "trials", title: "Trials", isNumber: true, show: (one) => `${one.trials.completed}/${one.trials.requested}` },
  { key: "best", title: "Best", isNumber: true, order: "metric", show: (one) => <BestMetric of={one} /> },
  { key: "curve", title: "Best curve", show: (one) => <BestCurve one={one} /> },
  { key: "searcher", title: "Searcher", show: (one) => one.searcher },
  { key: "pool", title: "Pool", show: (one) => <a href={href("pools", one.resource_pool)}>{one.resource_pool}</a> },
  { key: "workspace", title: "Workspace", show: ({ workspace }) => <a href={experimentsLink(workspace)}>{workspace}</a> },
  { key: "project", title: "Project", show: ({ workspace, project }) => <a href={experimentsLink(workspace, project)}>{project}</a> },
  { key: "user", title: "User", order: "user", show: ({ user }) => <a href={`${href("experiments")}?${new URLSearchParams({ user })}`}>{user}</a> },
  { key: "created", title: "Created", order: "submitted", show: (one) => <Moment ms={one.created_ms} isBrief /> },
  { key: "ended", title: "Ended", show: (one) => <Moment ms={one.ended_ms} isBrief /> },
  { key: "cost", title: "Cost", isNumber: true, order: "cost", show: (one) => dollarsText(one.cost) },
];

const HIDDEN_AT_FIRST = ["ended", "signal", "searcher", "workspace", "project", "pool"];
const SHOWN_AT_FIRST = COLUMNS.map(({ key }) => key).filter((key) => !HIDDEN_AT_FIRST.includes(key));

/** The columns of these keys, in order. A key that this version does not know has no column. */
export function columnsOf(keys: readonly string[]): Column<Experiment>[] {
  return keys.flatMap((key) => {
    if (isValueColumn(key)) return [valueColumn(key)];
    return COLUMNS.filter((column) => column.key === key);
  });
}

/** The keys that an address or this browser names: the cluster's columns first, then values in order. */
export function shownColumns(query: URLSearchParams): string[] {
  return sortKeys(readKeys(query.get("columns")) ?? readKeys(localStorage.getItem(KEY)) ?? SHOWN_AT_FIRST);
}

export function keepColumns(keys: readonly string[]): void {
  localStorage.setItem(KEY, JSON.stringify(keys));
}

/** The keys in the order of the table: columns of values stand before the moments and the cost. */
export function sortKeys(keys: readonly string[]): string[] {
  const known = COLUMNS.map(({ key }) => key).filter((key) => keys.includes(key));
  const values = [...new Set(keys.filter(isValueColumn))].slice(0, VALUE_COLUMNS_MAX);
  const after = known.findIndex((key) => COLUMNS.findIndex((column) => column.key === key) > COLUMNS.findIndex(({ key: one }) => one === "curve"));
  const place = after === -1 ? known.length : after;
  return [...known.slice(0, place), ...values, ...known.slice(place)];
}

/** The title of a column of values: the name without the kind. */
export function valueTitle(key: string): string {
  return key.slice(key.indexOf(":") + 1);
}

function valueColumn(key: string): Column<Experiment> {
  return { key, title: valueTitle(key), isNumber: true, order: key, show: (one) => listedText(one.values?.[key]) };
}

function listedText(value: NonNullable<Experiment["values"]>[string] | undefined) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "object") return valueText(value);
  if ("any" in value) return <span title="the choices of the search">{value.any.map(valueText).join(", ")}</span>;
  return <span title="the range of the search">{numberText(value.min)} … {numberText(value.max)}</span>;
}

function readKeys(text: string | null): string[] | undefined {
  try {
    const keys: unknown = JSON.parse(text ?? "");
    if (Array.isArray(keys)) return keys.filter((key) => typeof key === "string");
  } catch {
    // Nothing was chosen yet, or by another version.
  }
  return undefined;
}
