/** The Pareto front of a search: its metric against what the trials took. */

import type { ExperimentWhole } from "../../api/answers";
import { Chart, type Curve } from "../../curves/chart";
import { factsOf, namesToColourBy } from "../../curves/colour_by";
import type { Fact, PointSubject } from "../../curves/curve";
import { paretoFront } from "../../curves/pareto";
import { rowsCsv } from "../../curves/save_chart";
import { durationText, numberText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { href, useRoute, useSetQuery } from "../../shell/router";
import { flatten, type Trial } from "./all_trials";
import { useSearches } from "./optimization_part";

/** What a trial took; less is better. */
const EXPENSES = {
  batches: { title: "batches", of: (trial: Trial): number | null => trial.steps_completed },
  time: { title: "time from the trial's creation to its end", of: ({ created_ms: created, ended_ms: ended }: Trial) => (ended === null ? null : (ended - created) / 1000) },
  cost: { title: "dollars", of: ({ cost }: Trial): number | null => cost },
} as const;
type Expense = keyof typeof EXPENSES;

interface Placed {
  trial: Trial;
  x: number;
  y: number;
  isFront: boolean;
}

export function ParetoPart({ experiment }: { experiment: ExperimentWhole }) {
  const live = useSearches([experiment]);
  const chosen = useRoute().query.get("against") ?? "";
  const setQuery = useSetQuery();
  const expense = (chosen in EXPENSES ? chosen : "time") as Expense;
  return (
    <>
      <div class="tools">
        <label>Against{" "}
          <select value={expense} onChange={(event) => setQuery({ against: event.currentTarget.value === "time" ? null : event.currentTarget.value })}>
            <option value="time">time</option>
            <option value="batches">batches</option>
            <option value="cost">dollars</option>
          </select>
        </label>
        <span class="quiet">No trial is better than a trial of the front in both directions. Compare shows the front of any two metrics.</span>
      </div>
      <Shown live={live}>
        {([search]) => <Front experiment={experiment} trials={search!.trials} expense={expense} />}
      </Shown>
    </>
  );
}

function Front({ experiment, trials, expense }: { experiment: ExperimentWhole; trials: Trial[]; expense: Expense }) {
  const placed = placedTrials(trials, expense, experiment.smaller_is_better);
  if (placed.length === 0) return <Empty>No trial has a value of {experiment.metric} and an end yet.</Empty>;
  const front = placed.filter(({ isFront }) => isFront);
  const names = namesToColourBy(trials.map(({ id, hparams }) => ({ label: String(id), points: [], hparams: flatten(hparams) })));
  const at = new Map(placed.map((one) => [one.x, one.trial]));
  const subjectAt = (x: number): PointSubject | undefined => {
    const trial = at.get(x);
    return trial && { label: `trial ${trial.id}`, href: href("trials", trial.id), facts: [["state", trial.condition] as Fact, ...factsOf(flatten(trial.hparams), names)] };
  };
  const toPoints = (some: Placed[]): Curve["points"] => some.map(({ x, y }) => [x, y]);
  const curves: Curve[] = [
    { label: "other trials", points: toPoints(placed.filter(({ isFront }) => !isFront)), kind: "points", paint: { group: 7 }, subjectAt },
    { label: "border of the front", points: toPoints(front), kind: "steps", paint: { group: 1 } },
    { label: "Pareto front", points: toPoints(front), kind: "points", paint: { group: 1 }, subjectAt },
  ];
  return (
    <>
      <Chart label={`Pareto front of experiment ${experiment.id} by ${expense}`} yLabel={experiment.metric} curves={curves.filter(({ points }) => points.length > 0)} isLog={false}
        xUnit={expense === "time" ? "elapsed" : "batches"} xTitle={EXPENSES[expense].title} height={340}
        csv={() => rowsCsv(["trial", EXPENSES[expense].title, experiment.metric, "on the front"], placed.map(({ trial, x, y, isFront }) => [trial.id, Number(x.toPrecision(8)), y, isFront ? "yes" : "no"]))} />
      <p>
        On the front:{" "}
        {front.map(({ trial, x, y }, n) => <>{n > 0 && "; "}<a key={trial.id} href={href("trials", trial.id)}>trial {trial.id}</a> ({numberText(y)}, {expense === "time" ? durationText(1000 * x) : numberText(x)})</>)}
      </p>
    </>
  );
}

/** The trials with both values, by their expense, each at a place of its own. */
function placedTrials(trials: Trial[], expense: Expense, smallerIsBetter: boolean): Placed[] {
  const known = trials.flatMap((trial) => {
    const [x, y] = [EXPENSES[expense].of(trial), trial.best_metric];
    return x === null || y === null || !Number.isFinite(y) ? [] : [{ trial, x, y }];
  });
  const isFront = paretoFront(known, { x: true, y: smallerIsBetter });
  const placed = known.map((one, n): Placed => ({ ...one, isFront: isFront[n]! })).sort((a, b) => a.x - b.x);
  let last = -Infinity;
  // A chart has one value at a place; the shift is too small to be seen.
  return placed.map((one) => {
    last = one.x > last ? one.x : last + Math.max(Math.abs(last), 1) * 1e-9;
    return { ...one, x: last };
  });
}
