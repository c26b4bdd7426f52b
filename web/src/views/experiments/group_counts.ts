/** The numbers of experiments in each project that match the filter, counted by the cluster. */

import { get, type Schemas } from "../../api/client";
import { useLive, type Live } from "../../live/use_live";

type Groups = Schemas["ExperimentGroups"];

/** Undefined as long as the experiments are not grouped, and until the cluster has counted. */
export function useGroupCounts(filter: string, isGrouped: boolean, mark: string): Live<Groups | null> {
  return useLive<Groups | null>(
    `groups ${isGrouped} ${filter}`,
    async (signal) => (isGrouped ? get("/api/v1/experiment-groups", { query: { filter }, signal }) : null),
    // Each count reads all matching rows, so that it follows the list.
    () => "still",
    mark,
  );
}

/** The key of a group of the table and of the cluster's counts. */
export function groupKey({ workspace, project }: { workspace: string; project: string }): string {
  return `${workspace}/${project}`;
}

/** How many rows of a group are shown, and how many experiments match: `3 of 40`. */
export function groupCountText(shown: number, matching: number | undefined, isExact: boolean): string {
  if (matching === undefined) return `${shown} shown`;
  // The list may be newer than the count.
  if (matching <= shown && isExact) return String(shown);
  return `${shown} of ${isExact ? "" : "at most "}${Math.max(matching, shown)}`;
}
