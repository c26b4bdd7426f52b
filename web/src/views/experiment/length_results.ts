/** The trials' results after one length of training, and the importance of hyperparameters for them. */

import type { ExperimentWhole } from "../../api/answers";
import { collect, get, type Schemas } from "../../api/client";
import { markOf, motionOfParts } from "../../live/owner";
import { useLive, type Live } from "../../live/use_live";
import { useRoute } from "../../shell/router";
import { flatten } from "./all_trials";

export type Importance = Schemas["Importance"];
type ResultPage = Schemas["ResultPage"];

/** A trial with a result. */
export interface Measured {
  id: number;
  metric: number;
  /** By dotted path. */
  hparams: Record<string, unknown>;
}

/** What all charts of hyperparameters show: never results of different lengths. */
export interface Comparison {
  results: Omit<ResultPage, "items" | "next_cursor">;
  measured: Measured[];
  importance: Importance;
}

// The cluster answers with at most as many.
const RESULTS_MAX = 2000;
const PAGE = 250;

/** The results at the length of the address; without one, at the length that the cluster chooses. */
export function useComparison(experiment: ExperimentWhole): Live<Comparison> {
  const { query } = useRoute();
  const id = experiment.id!;
  const asked = readLength(query.get("at"));
  return useLive(
    `results ${id} ${asked}`,
    async (signal) => {
      const path = { experiment_id: id };
      let head: ResultPage | undefined;
      const { items } = await collect(async (cursor) => {
        // Further pages are those of the first, also if the search goes on meanwhile.
        const page = await get("/api/v1/experiments/{experiment_id}/results", { path, query: { at: asked ?? head?.at, limit: PAGE, cursor }, signal });
        head ??= page;
        return page;
      }, RESULTS_MAX);
      const importance = await get("/api/v1/experiments/{experiment_id}/importance", { path, query: { at: asked ?? head!.at }, signal });
      const { items: _items, next_cursor: _cursor, ...results } = head!;
      return { results, importance, measured: items.map(toMeasured) };
    },
    () => motionOfParts(experiment),
    markOf(experiment),
  );
}

/** The importance of the hyperparameters alone, at the length that the cluster chooses. */
export function useImportance(experiment: ExperimentWhole): Live<Importance> {
  const path = { experiment_id: experiment.id! };
  return useLive(
    `importance ${experiment.id}`,
    (signal) => get("/api/v1/experiments/{experiment_id}/importance", { path, signal }),
    () => motionOfParts(experiment),
    markOf(experiment),
  );
}

/** A length of an address; null for a text that is none. */
export function readLength(text: string | null): number | null {
  return text !== null && /^[1-9]\d{0,14}$/.test(text) ? Number(text) : null;
}

/** A length with its unit: `1 batch`, `900 batches`. */
export function lengthText(length: number, unit: string): string {
  const one = unit === "batches" ? "batch" : unit.replace(/s$/, "");
  return `${length} ${length === 1 ? one : unit}`;
}

function toMeasured({ trial_id: id, metric, hparams }: Schemas["TrialResult"]): Measured {
  return { id, metric, hparams: flatten(hparams) };
}
