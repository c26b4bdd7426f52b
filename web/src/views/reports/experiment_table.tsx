/** The table of experiments of a report. */

import { collect, get } from "../../api/client";
import { motionOf } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { Empty, Shown } from "../../parts/status";
import { Table } from "../../parts/table";
import { useRoute } from "../../shell/router";
import { CurvesContext, useBestCurves } from "../experiments/best_curve";
import { COLUMNS, columnsOf } from "../experiments/columns";
import { isValueColumn } from "../experiments/order";
import { KINDS, type ChartSpec } from "./chart_block";
import { UnknownName } from "./unknown_name";

const USUAL = ["id", "name", "state", "best", "trials", "user", "created"];

export function ExperimentTable({ spec }: { spec: ChartSpec }) {
  const { query } = useRoute();
  const keys = JSON.parse(query.get("columns") ?? JSON.stringify(USUAL)) as string[];
  const values = keys.filter(isValueColumn);
  const unknown = keys.find((key) => columnsOf([key]).length === 0);
  // The cluster lists experiments by ids only in a filter.
  const filter = spec.filter || `id:${spec.experiments.join(",")} archived:all`;
  const wanted = { filter, columns: values, sort: query.get("sort"), order: query.get("order") };
  const { many } = KINDS[spec.kind];
  const live = useLive(
    `table of a report ${JSON.stringify(wanted)}`,
    (signal) => collect((cursor) => get("/api/v1/experiments", { query: { ...wanted, limit: many, cursor }, signal }), many),
    ({ items }) => (items.some((one) => motionOf(one) === "moving") ? "moving" : "resting"),
  );
  const items = live.value?.items ?? [];
  const curves = useBestCurves(items, keys.includes("curve"));
  if (unknown !== undefined) return <UnknownName name="columns" value={unknown} expected={[...COLUMNS.map(({ key }) => key), "metric:NAME", "hparam:PATH"]} />;
  const missing = spec.experiments.filter((id) => !items.some((one) => one.id === id));
  return (
    <Shown live={live}>
      {({ next }) => (
        <>
          {items.length === 0 ? <Empty>No experiment matches <code>{filter}</code>.</Empty> : (
            <CurvesContext.Provider value={curves}>
              <Table label={spec.title || "experiments"} rows={items} rowKey={({ id }) => id!} columns={columnsOf(keys).map(({ order: _, ...column }) => column)} />
            </CurvesContext.Provider>
          )}
          {items.length > 0 && missing.length > 0 && <p class="failure">Not found: {missing.join(", ")}. These are deleted, or no experiments.</p>}
          {next && <p class="quiet">The first {items.length} are shown.</p>}
        </>
      )}
    </Shown>
  );
}
