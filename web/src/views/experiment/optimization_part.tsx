/** The optimization history: the objective of every trial, and the best so far. */

import type { ExperimentWhole } from "../../api/answers";
import { collect, get } from "../../api/client";
import { Chart, type Curve } from "../../curves/chart";
import { factsOf, namesToColourBy } from "../../curves/colour_by";
import type { PointSubject } from "../../curves/curve";
import { HISTORY_TITLES, HISTORY_UNITS, searchCourse, type HistoryTrial, type HistoryUnit, type SearchCourse } from "../../curves/optimization_history";
import { rowsCsv } from "../../curves/save_chart";
import { motionOfParts } from "../../live/owner";
import { useLive, type Live } from "../../live/use_live";
import { countText, dollarsText, numberText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { href, useRoute, useSetQuery } from "../../shell/router";
import { flatten, type Trial } from "./all_trials";

/** A search with its trials, as far as they were loaded. */
export interface LoadedSearch {
  experiment: ExperimentWhole;
  trials: Trial[];
  /** Whether the search has more trials. */
  hasMore: boolean;
}

// Of all searches together, so that the page asks for a bounded number of pages.
const TRIALS_FIRST = 1000;
const TRIALS_MAX = 10_000;
const PAGE = 250;

/** The trials of searches, in parts: the first thousand, and all up to ten thousand on demand. */
export function useSearches(experiments: ExperimentWhole[]): Live<LoadedSearch[]> {
  const most = Math.ceil((useRoute().query.get("all") === "1" ? TRIALS_MAX : TRIALS_FIRST) / Math.max(1, experiments.length));
  const isMoving = experiments.some((one) => motionOfParts(one) === "moving");
  return useLive(
    `searches ${experiments.map(({ id }) => id)} ${most}`,
    (signal) => Promise.all(experiments.map(async (experiment): Promise<LoadedSearch> => {
      const path = { experiment_id: experiment.id! };
      const { items, next } = await collect((cursor) => get("/api/v1/experiments/{experiment_id}/trials", { path, query: { limit: Math.min(PAGE, most), cursor }, signal }), most);
      return { experiment, trials: items, hasMore: next };
    })),
    () => (isMoving ? "moving" : "still"),
    experiments.map(({ state }) => state).join(),
    (searches) => searches.map(({ trials }) => trials.map(({ id, best_metric: metric, ended_ms: ended }) => `${id} ${metric} ${ended}`).join()).join("\n"),
  );
}

export function OptimizationPart({ experiment, isBrief = false }: { experiment: ExperimentWhole; isBrief?: boolean }) {
  const live = useSearches([experiment]);
  return <Shown live={live}>{(searches) => <OptimizationHistory searches={searches} isBrief={isBrief} />}</Shown>;
}

interface HistoryProps {
  searches: LoadedSearch[];
  /** Whether the chart has no settings: over trials, on a linear scale. */
  isBrief?: boolean;
}

/** The courses of one or several searches in one chart. */
export function OptimizationHistory({ searches, isBrief = false }: HistoryProps) {
  const { query } = useRoute();
  const setQuery = useSetQuery();
  const unit = (!isBrief && HISTORY_UNITS.find((one) => one === query.get("over"))) || "trials";
  const isLog = !isBrief && query.get("scale") === "log";
  const nowMs = Math.max(...searches.flatMap(({ trials }) => trials.map(({ created_ms: created, ended_ms: ended }) => ended ?? created)), 0);
  const courses = searches.map(({ experiment, trials }) => searchCourse(trials.map(toHistory), unit, experiment.smaller_is_better, nowMs));
  const metrics = [...new Set(searches.map(({ experiment }) => experiment.metric))].join(", ");
  const shown = searches.flatMap((search, n) => (courses[n]!.points.length ? [{ search, course: courses[n]! }] : []));
  const loaded = searches.reduce((sum, { trials }) => sum + trials.length, 0);
  const missing = courses.reduce((sum, course) => sum + course.missing, 0);
  const label = searches.length === 1 ? `optimization history of experiment ${searches[0]!.experiment.id}` : "optimization history of what is compared";
  return (
    <>
      {!isBrief && <div class="tools">
        <label>Over{" "}
          <select value={unit} onChange={(event) => setQuery({ over: event.currentTarget.value === "trials" ? null : event.currentTarget.value })}>
            <option value="trials">trials</option>
            <option value="time">time</option>
            <option value="batches">batches</option>
            <option value="cost">dollars</option>
          </select>
        </label>
        <label>
          <input type="checkbox" checked={isLog} onChange={(event) => setQuery({ scale: event.currentTarget.checked ? "log" : null })} /> Log scale
        </label>
        <span class="quiet">
          {countText(loaded, "trial")}{missing > 0 && `, ${missing} without a value yet`}
          {unit === "cost" && loaded > 0 && searches.every(({ trials }) => trials.every(({ cost }) => cost === 0)) && "; their machines have no price"}
        </span>
        {searches.some(({ hasMore }) => hasMore) && loaded < TRIALS_MAX && <button onClick={() => setQuery({ all: "1" })}>Load up to {TRIALS_MAX} trials</button>}
      </div>}
      {isBrief && searches.some(({ hasMore }) => hasMore) && <p class="quiet">The first {loaded} trials.</p>}
      {shown.length === 0 ? <Empty>No trial has a value of {metrics} yet.</Empty> : (
        <Chart label={label} yLabel={metrics} curves={shown.flatMap(({ search, course }, n) => courseCurves(search, course, n, shown.length > 1))}
          isLog={isLog} xUnit={unit === "time" ? "elapsed" : "batches"} xTitle={HISTORY_TITLES[unit]} height={isBrief ? 260 : 340}
          csv={() => historyCsv(shown, unit)} />
      )}
    </>
  );
}

function toHistory({ id, number, best_metric: metric, steps_completed: batches, created_ms: createdMs, ended_ms: endedMs, cost }: Trial): HistoryTrial {
  return { id, number, metric, batches, createdMs, endedMs, cost };
}

/** The points and the running best of a search, in the colour of its place. */
function courseCurves({ experiment, trials }: LoadedSearch, course: SearchCourse, place: number, areSeveral: boolean): Curve[] {
  const known = new Map(trials.map((trial) => [trial.id, trial]));
  const names = namesToColourBy(trials.map(({ id, hparams }) => ({ label: String(id), points: [], hparams: flatten(hparams) })));
  const subjectAt = (x: number): PointSubject | undefined => {
    const trial = known.get(course.trials.get(x)?.id ?? -1);
    if (!trial) return undefined;
    const facts = [["state", trial.condition], ...(trial.cost ? [["cost", dollarsText(trial.cost)] as const] : []), ...factsOf(flatten(trial.hparams), names)] as const;
    return { label: `trial ${trial.id}`, href: href("trials", trial.id), facts };
  };
  const of = areSeveral ? ` of experiment ${experiment.id}` : "";
  const paint = { group: place };
  return [
    { label: `trials${of}`, points: course.points, kind: "points", paint, subjectAt },
    { label: `best so far${of}`, points: course.best, kind: "steps", paint: { group: areSeveral ? place : 1 },
      short: `${areSeveral ? `${experiment.id}: ` : "best "}${numberText(course.best.at(-1)?.[1])}` },
  ];
}

function historyCsv(shown: { search: LoadedSearch; course: SearchCourse }[], unit: HistoryUnit): string {
  const rows = shown.flatMap(({ search: { experiment }, course }) => course.points.map(([x, y], n) => {
    const trial = course.trials.get(x)!;
    return [experiment.id, trial.id, Number(x.toPrecision(8)), y, course.best[n]![1], trial.batches, trial.cost];
  }));
  return rowsCsv(["experiment", "trial", HISTORY_TITLES[unit], "objective", "best so far", "batches", "dollars"], rows);
}
