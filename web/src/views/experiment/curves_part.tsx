/** The curves of an experiment's best trials, live. */

import { get } from "../../api/client";
import { CurvePanel } from "../../curves/curve_panel";
import { toPoints } from "../../curves/joining";
import { useLive } from "../../live/use_live";
import { Shown } from "../../parts/status";
import { href, setQuery, useRoute } from "../../shell/router";
import { markOf, motionOfParts, type ExperimentWhole } from "./experiment_view";

const COUNTS = ["5", "10", "20", "50", "100", "200"];
// Of all curves together, so that an answer stays small.
const POINTS_MAX = 20_000;

export function CurvesPart({ experiment }: { experiment: ExperimentWhole }) {
  const { query } = useRoute();
  const id = experiment.id!;
  const best = experiment.best_trial_id ?? null;
  const wanted = {
    group: query.get("group") ?? "validation",
    name: query.get("metric"),
    trials: COUNTS.find((count) => count === query.get("trials")) ?? "10",
  };
  // The names that the best trial has reported are those that one may choose from.
  const names = useLive(`names ${best}`, async (signal) =>
    best === null ? [] : (await get("/api/v1/trials/{trial_id}/metrics/names", { path: { trial_id: best }, signal })).items,
    () => motionOfParts(experiment), markOf(experiment));
  const live = useLive(
    `curves ${id} ${JSON.stringify(wanted)}`,
    (signal) => get("/api/v1/experiments/{experiment_id}/metrics", { path: { experiment_id: id }, query: { ...wanted, points: Math.min(500, POINTS_MAX / Number(wanted.trials)) }, signal }),
    () => motionOfParts(experiment),
    markOf(experiment),
  );
  const chosen = wanted.name ?? experiment.metric;
  return (
    <>
      <div class="tools">
        <label>Metric{" "}
          <select value={JSON.stringify([wanted.group, chosen])}
            onChange={(event) => {
              const [group, metric] = JSON.parse(event.currentTarget.value) as [string, string];
              setQuery({ group, metric });
            }}>
            {nameChoices(names.value ?? [], wanted.group, chosen).map(([group, name]) => (
              <option key={`${group} ${name}`} value={JSON.stringify([group, name])}>{group}: {name}</option>
            ))}
          </select>
        </label>
        <label>Best trials{" "}
          <select value={wanted.trials} onChange={(event) => setQuery({ trials: event.currentTarget.value })}>
            {COUNTS.map((count) => <option key={count}>{count}</option>)}
          </select>
        </label>
      </div>
      <Shown live={live}>
        {({ name, series }) => (
          <CurvePanel label={`trials of experiment ${id}`} yLabel={name}
            smallerIsBetter={name === experiment.metric ? experiment.smaller_is_better : undefined}
            curves={series.map(({ trial_id, points }) => ({
              label: `trial ${trial_id}`, points: toPoints(points), href: href("trials", trial_id),
            }))} />
        )}
      </Shown>
    </>
  );
}

function nameChoices(names: { group: string; name: string }[], group: string, chosen: string): string[][] {
  const choices = names.map((one) => [one.group, one.name]);
  const isThere = choices.some(([g, name]) => g === group && name === chosen);
  return isThere ? choices : [[group, chosen], ...choices];
}
