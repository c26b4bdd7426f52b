/** What the profiler measured of the machines that a trial runs on, by the rank that did. */

import type { TrialWhole } from "../../api/answers";
import { get, type Schemas } from "../../api/client";
import { Chart } from "../../curves/chart";
import { toPoints } from "../../curves/joining";
import { markOf, motionOfParts } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { Empty, Shown } from "../../parts/status";
import { setQuery, useRoute } from "../../shell/router";
import { profilerCharts, unitOf, type ProfilerChart } from "./profiler_charts";

// Of more ranks the first can be chosen, and any by the address.
const RANKS_MAX = 256;

interface Measured {
  charts: ProfilerChart[];
  series: Schemas["Series"][];
}

export function ProfilerPart({ trial }: { trial: TrialWhole }) {
  const { query } = useRoute();
  const rank = Number(query.get("rank")) || 0;
  const ranks = useLive(
    `ranks ${trial.id}`,
    async (signal) => (await get("/api/v1/trials/{trial_id}/metrics/ranks", { path: { trial_id: trial.id }, signal })).items,
    () => motionOfParts(trial),
    markOf(trial),
  );
  const live = useLive(
    `profile ${trial.id} ${rank}`,
    (signal) => loadMeasured(trial.id, rank, signal),
    () => motionOfParts(trial),
    markOf(trial),
  );
  return (
    <>
      <Shown live={ranks}>
        {(apart) => {
          const others = apart.filter((one) => one > 0).slice(0, RANKS_MAX);
          const choices = [...new Set([0, ...others, rank])].sort((a, b) => a - b);
          return choices.length > 1 && (
            <div class="tools">
              <label>Rank{" "}
                <select value={rank} onChange={(event) => setQuery({ rank: event.currentTarget.value === "0" ? null : event.currentTarget.value })}>
                  {choices.map((one) => <option key={one} value={one}>{one}</option>)}
                </select>
              </label>
              <span class="quiet">The first process of each machine measures it.</span>
            </div>
          );
        }}
      </Shown>
      <Shown live={live}>
        {({ charts, series }) => charts.length === 0
          ? <Empty>Rank {rank} has no measurements. A trial measures its machines if its configuration enables profiling (<code>profiling.enabled: true</code>).</Empty>
          : <div class="split">{charts.map((chart) => <MachineChart key={chart.title} chart={chart} series={series} />)}</div>}
      </Shown>
    </>
  );
}

function MachineChart({ chart, series }: { chart: ProfilerChart; series: Schemas["Series"][] }) {
  const curves = chart.names.flatMap((name) => {
    const found = series.find((one) => one.group === chart.group && one.name === name);
    return found ? [{ label: name, points: toPoints(found.points) }] : [];
  });
  return (
    <section aria-label={chart.title}>
      <Chart label="machine" yLabel={chart.title} axisTitle={unitOf(chart.title)} curves={curves} isLog={false} xUnit="time" />
    </section>
  );
}

/** The series of all charts: of each chart, 20 names at once. */
async function loadMeasured(trial: number, rank: number, signal: AbortSignal): Promise<Measured> {
  // What the chief measures are metrics of the trial.
  const apart = rank > 0 ? { rank } : {};
  const path = { trial_id: trial };
  const names = await get("/api/v1/trials/{trial_id}/metrics/names", { path, query: apart, signal });
  const charts = profilerCharts(names.items);
  const requests = charts.flatMap(({ group, names: wanted }) => {
    const pieces: string[][] = [];
    for (let first = 0; first < wanted.length; first += 20) pieces.push(wanted.slice(first, first + 20));
    return pieces.map((name) =>
      get("/api/v1/trials/{trial_id}/metrics/series", { path, query: { ...apart, group, name, points: 500 }, signal }));
  });
  const answers = await Promise.all(requests);
  return { charts, series: answers.flatMap(({ series }) => series) };
}
