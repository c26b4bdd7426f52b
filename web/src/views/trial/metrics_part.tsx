/** A trial's metrics: a group's curves, and the bounds of every name. */

import type { TrialWhole } from "../../api/answers";
import { get, type Schemas } from "../../api/client";
import { CurveChart, CurveTools } from "../../curves/curve_panel";
import { batchSize, needsTimes, offeredUnits, placePoints, recordsPerEpoch } from "../../curves/x_axis";
import { XChoice, useXUnit } from "../../curves/x_choice";
import { markOf, motionOfParts } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { numberText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { setQuery, useRoute } from "../../shell/router";

const COLUMNS: Column<Schemas["MetricName"]>[] = [
  { key: "group", title: "Group", show: (one) => one.group, value: (one) => one.group },
  { key: "name", title: "Name", show: (one) => one.name, value: (one) => one.name },
  { key: "last", title: "Latest", isNumber: true, show: (one) => numberText(one.last), value: (one) => one.last },
  { key: "minimum", title: "Minimum", isNumber: true, show: (one) => numberText(one.minimum), value: (one) => one.minimum },
  { key: "maximum", title: "Maximum", isNumber: true, show: (one) => numberText(one.maximum), value: (one) => one.maximum },
  { key: "mean", title: "Mean", isNumber: true, show: (one) => numberText(one.mean), value: (one) => one.mean },
  { key: "steps", title: "At step", isNumber: true, show: (one) => one.last_steps, value: (one) => one.last_steps },
  { key: "count", title: "Values", isNumber: true, show: (one) => one.count, value: (one) => one.count },
];

const CHARTS_MAX = 20;

export function MetricsPart({ trial }: { trial: TrialWhole }) {
  const path = { trial_id: trial.id };
  const live = useLive(
    `names ${trial.id}`,
    async (signal) => (await get("/api/v1/trials/{trial_id}/metrics/names", { path, signal })).items,
    () => motionOfParts(trial),
    markOf(trial),
  );
  return (
    <Shown live={live}>
      {(names) => names.length === 0 ? <Empty>No metrics yet.</Empty> : (
        <>
          <Curves trial={trial} groups={[...new Set(names.map(({ group }) => group))]} names={names} />
          <h2>All metrics</h2>
          <Table label="metrics" columns={COLUMNS} rows={names} rowKey={(one) => `${one.group} ${one.name}`} />
        </>
      )}
    </Shown>
  );
}

interface CurvesProps {
  trial: TrialWhole;
  groups: string[];
  names: Schemas["MetricName"][];
}

function Curves({ trial, groups, names }: CurvesProps) {
  const { query } = useRoute();
  const group = groups.find((one) => one === query.get("group")) ?? (groups.includes("validation") ? "validation" : groups[0]!);
  const own = names.filter((one) => one.group === group).map(({ name }) => name);
  const chosen = own.find((name) => name === query.get("metric"));
  // As many as the cluster draws in one answer.
  const shown = chosen === undefined ? own.slice(0, CHARTS_MAX) : [chosen];
  // The units are those of its experiment's configuration.
  const experiment = useLive(`configuration of ${trial.experiment_id}`, (signal) =>
    get("/api/v1/experiments/{experiment_id}", { path: { experiment_id: trial.experiment_id }, signal }), () => "still");
  const offered = offeredUnits(experiment.value?.config);
  const unit = useXUnit(offered);
  const scale = { batchSize: batchSize(trial.hparams), recordsPerEpoch: recordsPerEpoch(experiment.value?.config) };
  const times = needsTimes(unit) || null;
  const live = useLive(
    `series ${trial.id} ${group} ${JSON.stringify(shown)} ${times}`,
    (signal) => get("/api/v1/trials/{trial_id}/metrics/series", { path: { trial_id: trial.id }, query: { group, name: shown, times, points: shown.length > 1 ? 500 : 2000 }, signal }),
    () => motionOfParts(trial),
    markOf(trial),
  );
  return (
    <>
      <div class="tools">
        <label>Group{" "}
          <select value={group} onChange={(event) => setQuery({ group: event.currentTarget.value, metric: null })}>
            {groups.map((one) => <option key={one}>{one}</option>)}
          </select>
        </label>
        <label>Metric{" "}
          <select value={chosen ?? ""} onChange={(event) => setQuery({ group, metric: event.currentTarget.value })}>
            {own.length > 1 && <option value="">{own.length > CHARTS_MAX ? `the first ${CHARTS_MAX} of ${own.length}` : "all"}</option>}
            {own.map((one) => <option key={one}>{one}</option>)}
          </select>
        </label>
        <XChoice offered={offered} unit={unit} />
      </div>
      <CurveTools hasBest={false} />
      <Shown live={live}>
        {({ series, started_ms: startedMs }) => (
          <div class={series.length > 1 ? "split" : ""}>
            {series.map(({ name, points }) => (
              <CurveChart key={name} label={`trial ${trial.id}`} yLabel={name} xUnit={unit} height={series.length > 1 ? 240 : 300}
                curves={[{ label: name, points: placePoints(points, unit, { ...scale, startedMs }) }]} />
            ))}
          </div>
        )}
      </Shown>
    </>
  );
}
