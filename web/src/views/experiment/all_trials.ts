/** The trials of an experiment, as the views of it share them. */

import type { ExperimentWhole } from "../../api/answers";
import { collect, get, type Schemas } from "../../api/client";
import { motionOfParts } from "../../live/owner";
import { useLive, type Live } from "../../live/use_live";

export type Trial = Schemas["Trial"];

export interface Trials {
  items: Trial[];
  /** Whether there are more than `TRIALS_MAX`. */
  next: boolean;
}

export const TRIALS_MAX = 1000;
// Of a page of them, which the cluster answers while others wait.
const PAGE = 250;

export function useTrials(experiment: ExperimentWhole): Live<Trials> {
  const id = experiment.id!;
  return useLive(
    `trials ${id}`,
    (signal) =>
      collect((cursor) => get("/api/v1/experiments/{experiment_id}/trials", { path: { experiment_id: id }, query: { limit: PAGE, cursor }, signal }), TRIALS_MAX),
    () => motionOfParts(experiment),
    experiment.state,
  );
}

/** The names whose values differ between rows of `flatten`. */
export function differingNames(rows: Record<string, unknown>[]): string[] {
  const names = new Set(rows.flatMap((row) => Object.keys(row)));
  return [...names].filter((name) => new Set(rows.map((row) => JSON.stringify(row[name]))).size > 1);
}

/**
 * Nested values as one level, by paths: `{a: {b: 1}}` is `{"a.b": 1}`. A name that would be misread in
 * a path is a JSON string, as on the command line: `{"a.b": 1}` is `{'"a.b"': 1}`.
 */
export function flatten(value: Record<string, unknown>, prefix = ""): Record<string, unknown> {
  const flat: Record<string, unknown> = {};
  for (const [name, part] of Object.entries(value)) {
    const isNested = typeof part === "object" && part !== null && !Array.isArray(part);
    const path = prefix + nameText(name);
    if (isNested) Object.assign(flat, flatten(part as Record<string, unknown>, `${path}.`));
    else flat[path] = part;
  }
  return flat;
}

/** The paths of the hyperparameters that a configuration searches on a logarithmic scale, as in `flatten`. */
export function logNames(hyperparameters: unknown, prefix = ""): string[] {
  if (typeof hyperparameters !== "object" || hyperparameters === null) return [];
  return Object.entries(hyperparameters).flatMap(([name, space]) => {
    const path = prefix + nameText(name);
    const isLog = typeof space === "object" && space !== null && space.type === "log" && "minval" in space;
    return isLog ? [path] : logNames(space, `${path}.`);
  });
}

/** A name as it stands in a path; detcloud/shared/dotted_paths.py has the same rule. */
export function nameText(name: string): string {
  return PLAIN_NAME.test(name) ? name : JSON.stringify(name);
}

const PLAIN_NAME = /^[^\s.="'[\]\\\p{C}]+$/u;
